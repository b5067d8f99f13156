"""The training loop. What it does in a step depends on the optimizer, by a mixin for each."""

import logging
from collections import Counter

import paddle
from paddle import nn

from .field import FullyConnected, cavity_residuals


class AdamMixin:
    """A step of Adam and its like: gradients of several batches, then one update."""

    def adam_compute_gradients(self, step):
        loss, losses = 0.0, Counter()
        for _ in range(self.grad_agg_freq):
            with paddle.amp.auto_cast(enable=self.amp, dtype=self.amp_dtype):
                parts = self.compute_losses(step)
                parts = {key: value / self.grad_agg_freq for key, value in parts.items()}
                minibatch_loss = self.aggregate(parts)
            loss += float(minibatch_loss)
            self.scaler.scale(minibatch_loss).backward()
            losses.update({key: float(value) for key, value in parts.items()})
        return loss, losses

    def adam_apply_gradients(self):
        if self.grad_clip_max_norm > 0:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.network.parameters(), self.grad_clip_max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()


class LbfgsMixin:
    """L-BFGS calls the losses as often as its line search wants, in full precision."""

    def lbfgs_compute_gradients(self, step):
        if self.amp:
            raise NotImplementedError("no mixed precision with L-BFGS")
        self.lbfgs_at = step
        losses = self.compute_losses(step)
        return float(self.aggregate(losses)), losses

    def lbfgs_apply_gradients(self):
        def closure():
            self.optimizer.clear_grad()
            loss = self.aggregate(self.compute_losses(self.lbfgs_at))
            loss.backward()
            return loss

        self.optimizer.step(closure)


class FieldTrainer(AdamMixin, LbfgsMixin):
    def __init__(self, cfg):
        self.cfg = cfg
        self.log = logging.getLogger(__name__)
        self.max_steps = cfg.training.max_steps
        self.grad_agg_freq = cfg.training.grad_agg_freq
        self.grad_clip_max_norm = cfg.training.grad_clip_max_norm
        self.amp = cfg.training.amp
        on_gpu = paddle.device.is_compiled_with_cuda()
        if cfg.training.amp_dtype == "bfloat16" or not on_gpu:
            self.amp_dtype = "bfloat16"
        else:
            self.amp_dtype = "float16"
        self.network = FullyConnected(cfg.network.width, cfg.network.depth)
        self.compute_gradients = getattr(self, cfg.optimizer.compute_gradients)
        self.apply_gradients = getattr(self, cfg.optimizer.apply_gradients)
        self.optimizer = getattr(paddle.optimizer, cfg.optimizer.name)(
            learning_rate=cfg.optimizer.lr, parameters=self.network.parameters()
        )
        enable_scaler = self.amp and self.amp_dtype == "float16"
        self.scaler = paddle.amp.GradScaler(
            enable=enable_scaler, init_loss_scaling=65536.0, incr_every_n_steps=2000
        )

    def compute_losses(self, step):
        inside = paddle.rand([self.cfg.batch_size["interior"], 2])
        walls = paddle.rand([self.cfg.batch_size["walls"], 2])
        inside.stop_gradient = False
        return cavity_residuals(self.network, inside, walls)

    def aggregate(self, losses):
        return sum(losses.values())

    def solve(self):
        for step in range(self.max_steps):
            self.optimizer.clear_grad()
            loss, losses = self.compute_gradients(step)
            self.apply_gradients()
            if step % self.cfg.training.print_stats_freq == 0:
                self.log.info("step %d loss %.3e %s", step, loss, dict(losses))
            if (step + 1) % self.cfg.training.save_network_freq == 0:
                paddle.save(self.network.state_dict(), f"{self.cfg.network_dir}/net.pdparams")
