"""Loops: iterations with hooks around a step, and the step itself."""

import logging
import time

import torch

logger = logging.getLogger("det")


class TrainerBase:
    def train(self):
        for self.iter in range(self.start_iter, self.max_iter):
            self.run_step()
            self.after_step()

    def run_step(self):
        raise NotImplementedError

    def after_step(self):
        pass


class SimpleTrainer(TrainerBase):
    """Loss, gradients, and one step of one optimizer; no mixed precision."""

    def __init__(self, model, data_loader, optimizer, zero_grad_before_forward=False):
        model.train()
        self.model = model
        self.data_loader = data_loader
        self._data_loader_iter_obj = None
        self.optimizer = optimizer
        self.zero_grad_before_forward = zero_grad_before_forward
        self.iter = 0

    @property
    def _data_loader_iter(self):
        # only create the data loader iterator when it is used
        if self._data_loader_iter_obj is None:
            self._data_loader_iter_obj = iter(self.data_loader)
        return self._data_loader_iter_obj

    def run_step(self):
        start = time.perf_counter()
        data = next(self._data_loader_iter)
        data_time = time.perf_counter() - start
        loss_dict = self.model(data)
        losses = sum(loss_dict.values())
        self.optimizer.zero_grad()
        losses.backward()
        self._write_metrics(loss_dict, data_time)
        self.optimizer.step()

    def _write_metrics(self, loss_dict, data_time):
        if self.iter % 20 == 0:
            shown = ", ".join(f"{k}: {v.detach().item():.4f}" for k, v in loss_dict.items())
            logger.info("iter %d, %s, data_time %.3f", self.iter, shown, data_time)

    def state_dict(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


class AMPTrainer(SimpleTrainer):
    """Like :class:`SimpleTrainer`, but uses PyTorch's native automatic mixed precision."""

    def __init__(
        self,
        model,
        data_loader,
        optimizer,
        zero_grad_before_forward=False,
        grad_scaler=None,
        precision: torch.dtype = torch.float16,
        log_grad_scaler: bool = False,
    ):
        super().__init__(model, data_loader, optimizer, zero_grad_before_forward)
        if grad_scaler is None:
            from torch.cuda.amp import GradScaler

            grad_scaler = GradScaler()
        self.grad_scaler = grad_scaler
        self.precision = precision
        self.log_grad_scaler = log_grad_scaler

    def run_step(self):
        """Implement the AMP training logic."""
        assert self.model.training, "[AMPTrainer] model was changed to eval mode!"
        assert torch.cuda.is_available(), "[AMPTrainer] CUDA is required for AMP training!"
        from torch.cuda.amp import autocast

        start = time.perf_counter()
        data = next(self._data_loader_iter)
        data_time = time.perf_counter() - start

        if self.zero_grad_before_forward:
            self.optimizer.zero_grad()
        with autocast(dtype=self.precision):
            loss_dict = self.model(data)
            if isinstance(loss_dict, torch.Tensor):
                losses = loss_dict
                loss_dict = {"total_loss": loss_dict}
            else:
                losses = sum(loss_dict.values())

        if not self.zero_grad_before_forward:
            self.optimizer.zero_grad()
        self.grad_scaler.scale(losses).backward()
        if self.log_grad_scaler:
            logger.info("grad_scaler %s", self.grad_scaler.get_scale())
        self._write_metrics(loss_dict, data_time)
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()

    def state_dict(self):
        return {**super().state_dict(), "grad_scaler": self.grad_scaler.state_dict()}
