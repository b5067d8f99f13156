import os
import time

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients

from fleetgpt.core.module import BasicModule
from fleetgpt.optims import build_lr_scheduler, build_optimizer
from fleetgpt.utils.log import logger


class EagerEngine(object):
    """The common engine for all models, on one card and on many, in dygraph mode only."""

    def __init__(self, configs, module, optimizer=None, lr=None, mode="train"):
        super().__init__()
        self.mode = mode
        if not isinstance(module, BasicModule):
            raise TypeError(f"'module' must be a BasicModule, but got: {type(module).__name__}.")
        self._module = module

        # engine configs
        self._configs = configs["Engine"]
        self._run_mode = self._configs.get("run_mode", "step")
        assert self._run_mode in ["epoch", "step"], "run_mode must be epoch or step"
        self._max_steps = self._configs["max_steps"]
        self._eval_freq = self._configs["eval_freq"]
        self._eval_iters = self._configs["eval_iters"]
        self._logging_freq = self._configs["logging_freq"]
        self._num_train_epochs = self._configs["num_train_epochs"]

        amp_config = self._configs["mix_precision"]
        self._amp_enable = amp_config["enable"]
        self._amp_dtype = amp_config.get("dtype", "float16")
        self._amp_level = amp_config.get("level", "O2")
        self._scale_loss = amp_config["scale_loss"]
        self._custom_black_list = amp_config["custom_black_list"]
        self._custom_white_list = amp_config["custom_white_list"]
        if mode == "export" and self._amp_enable:
            logger.info("NOTE: disable amp in export mode")
            self._amp_enable = False

        self._save_steps = self._configs["save_load"]["save_steps"]
        self._output_dir = self._configs["save_load"]["output_dir"]
        self._ckpt_dir = self._configs["save_load"]["ckpt_dir"]
        self._use_recompute = configs["Model"]["use_recompute"]

        if self._amp_enable:
            if mode == "train":
                self._scaler = paddle.amp.GradScaler(init_loss_scaling=self._scale_loss)
            # Save dtype is the same as model dtype. Also can set save_dtype='float32' when
            # training with pure fp16 strategy, but will cause the rise of memory.
            self._module.model = paddle.amp.decorate(
                models=self._module.model, level=self._amp_level, dtype=self._amp_dtype
            )
        else:
            self._scaler = None

        self._lr_scheduler_mode = configs.Optimizer.lr.pop("run_mode", "step")
        self._lr_scheduler = build_lr_scheduler(configs.Optimizer.lr) if mode == "train" else None
        self._optimizer = (
            build_optimizer(configs.Optimizer, self._module.model, self._lr_scheduler)
            if mode == "train"
            else None
        )

        # distributed configs
        self._distributed = dist.get_world_size() > 1
        if self._distributed:
            self._wrap_with_fleet()

        # using for save/load
        self._load_recovery = {"step": 0, "epoch": 0}

        self.profiler = None
        if "Profiler" in configs and configs.get("Profiler", {}).get("enable", False):
            self.profiler = paddle.profiler.Profiler(
                scheduler=configs["Profiler"].get("scheduler", None),
                record_shapes=configs["Profiler"].get("record_shapes", True),
            )
            self.profiler.start()
            logger.warning("Profiler is enabled, do not enable it in production.")

    def _wrap_with_fleet(self):
        self._module.model = fleet.distributed_model(self._module.model)
        self._optimizer = fleet.distributed_optimizer(self._optimizer)
        self._scaler = (
            fleet.distributed_scaler(self._scaler) if self._scaler is not None else self._scaler
        )

    def _train_one_epoch(self, epoch_index, train_data_loader=None, valid_data_loader=None):
        self._module.model.train()
        train_losses = []
        train_start = time.time()
        skip_first = True
        total_train_batch = len(train_data_loader)
        for step, batch in enumerate(train_data_loader):
            if epoch_index == self._load_recovery["epoch"] and step < self._load_recovery["step"]:
                continue

            loss = self._fit_impl(batch)
            train_losses.append(loss)

            if (step + 1) % self._logging_freq == 0:
                cost = (time.time() - train_start) / self._logging_freq
                log_dict = {
                    "epoch": epoch_index,
                    "batch": step,
                    "total_batch": total_train_batch,
                    "train_cost": cost,
                    "loss": sum(float(each) for each in train_losses) / len(train_losses),
                    "lr": self._optimizer.get_lr(),
                }
                self._module.training_step_end(log_dict)
                train_start, train_losses = time.time(), []

            if self._lr_scheduler is not None and self._lr_scheduler_mode == "step":
                self._lr_scheduler.step()
            self._optimizer.clear_grad()

            if self._run_mode == "step" and not skip_first:
                if self._eval_freq > 0 and step % self._eval_freq == 0:
                    self._evaluate_some(epoch_index, valid_data_loader)
                if self._save_steps > 0 and step % self._save_steps == 0:
                    paddle.device.cuda.synchronize()
                    self.save(epoch=epoch_index, step=step)
            else:
                skip_first = False
            if self._run_mode == "step" and step >= self._max_steps:
                return
            if self.profiler:
                self.profiler.step()

    def fit(self, epoch=1, train_data_loader=None, valid_data_loader=None):
        """Run the full process of training, validation and saving."""
        self._module.model.train()
        for epoch_index in range(self._load_recovery["epoch"], epoch):
            start = time.time()
            self._train_one_epoch(epoch_index, train_data_loader, valid_data_loader)
            logger.info("epoch %d in %.1fs", epoch_index, time.time() - start)
            if self._lr_scheduler is not None and self._lr_scheduler_mode == "epoch":
                self._lr_scheduler.step()
        if self.profiler:
            self.profiler.stop()

    def _fit_impl(self, batch):
        batch = self._module.pretreating_batch(batch)
        if self._use_recompute and isinstance(self._module.model, paddle.DataParallel):
            with self._module.model.no_sync():
                loss = self._model_forward_backward(batch)
            fused_allreduce_gradients(list(self._module.model.parameters()), None)
        else:
            loss = self._model_forward_backward(batch)
        self._optim_update_params()
        return loss

    def _model_forward_backward(self, batch):
        with paddle.amp.auto_cast(
            self._amp_enable,
            custom_black_list=self._custom_black_list,
            custom_white_list=self._custom_white_list,
            dtype=self._amp_dtype,
            level=self._amp_level,
        ):
            loss = self._module.training_step(batch)
        loss_bw = self._scaler.scale(loss) if self._amp_enable else loss
        self._module.backward(loss_bw)
        return loss.detach()

    def _optim_update_params(self):
        if self._amp_enable:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        else:
            self._optimizer.step()

    @paddle.no_grad()
    def _evaluate_some(self, epoch, valid_data_loader):
        self._module.model.eval()
        losses = []
        for eval_step, batch in enumerate(valid_data_loader):
            losses.append(self._evaluate_impl(batch))
            if eval_step >= self._eval_iters - 1:
                break
        loss = sum(float(each) for each in losses) / len(losses)
        self._module.validation_step_end({"loss": loss, "epoch": epoch, "batch": eval_step})
        self._module.model.train()

    def _evaluate_impl(self, batch):
        batch = self._module.pretreating_batch(batch)
        with paddle.amp.auto_cast(
            self._amp_enable,
            custom_black_list=self._custom_black_list,
            custom_white_list=self._custom_white_list,
            dtype=self._amp_dtype,
            level=self._amp_level,
        ):
            return self._module.validation_step(batch)

    def save(self, epoch=0, step=0):
        folder = os.path.join(self._output_dir, "epoch_{}_step_{}".format(epoch, step))
        os.makedirs(folder, exist_ok=True)
        paddle.save(self._module.model.state_dict(), os.path.join(folder, "model.pdparams"))
        paddle.save(self._optimizer.state_dict(), os.path.join(folder, "model_state.pdopt"))
        paddle.save({"epoch": epoch, "step": step}, os.path.join(folder, "meta_state.pdopt"))

    def load(self):
        model = paddle.load(os.path.join(self._ckpt_dir, "model.pdparams"))
        self._module.model.set_state_dict(model)
        if self.mode == "train":
            optimizer = paddle.load(os.path.join(self._ckpt_dir, "model_state.pdopt"))
            self._optimizer.set_state_dict(optimizer)
            self._load_recovery = paddle.load(os.path.join(self._ckpt_dir, "meta_state.pdopt"))
