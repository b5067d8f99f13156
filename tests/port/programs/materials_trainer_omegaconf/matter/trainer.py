"""One trainer for all tasks; a model returns its losses in a dictionary."""

import contextlib
import os

import paddle
import paddle.distributed as dist
from paddle import amp
from paddle.distributed import fleet
from paddle.distributed.fleet.utils import hybrid_parallel_util as hpu


class BaseTrainer:
    def __init__(self, config, model, train_loader, optimizer=None):
        self.config = config
        self.model = model
        self.train_loader = train_loader
        self.optimizer = optimizer
        self.max_epochs = config["max_epochs"]
        self.use_amp = config.get("use_amp", False)
        self.amp_level = config.get("amp_level", "O1")
        self.gradient_accumulation_steps = config.get("gradient_accumulation_steps", 1)
        self.world_size = dist.get_world_size()
        if self.world_size > 1:
            fleet.init(is_collective=True)

        self.scaler = paddle.amp.GradScaler(True) if self.use_amp else None
        if self.use_amp:
            self.model, self.optimizer = amp.decorate(
                self.model, self.optimizer, self.amp_level, save_dtype="float32"
            )
        if self.world_size > 1:
            self.model = fleet.distributed_model(self.model)
            self.optimizer = fleet.distributed_optimizer(self.optimizer)

    def autocast_context_manager(self, enable, level):
        if enable:
            return amp.auto_cast(level=level)
        return contextlib.nullcontext()

    def no_sync_context_manager(self, enable, ddp_model):
        if enable:
            return ddp_model.no_sync()
        return contextlib.nullcontext()

    def train_epoch(self):
        self.model.train()
        for iter_id, batch in enumerate(self.train_loader):
            with self.no_sync_context_manager(self.world_size > 1, self.model):
                with self.autocast_context_manager(self.use_amp, self.amp_level):
                    result = self.model(batch)
                    loss = result["loss_dict"]["loss"]
                if self.use_amp:
                    loss_scaled = self.scaler.scale(loss)
                    loss_scaled.backward()
                else:
                    loss.backward()

            done = iter_id + 1
            if done % self.gradient_accumulation_steps != 0 and done != len(self.train_loader):
                continue

            if self.world_size > 1:
                hpu.fused_allreduce_gradients(list(self.model.parameters()), None)
            if self.use_amp:
                self.scaler.minimize(self.optimizer, loss_scaled)
            else:
                self.optimizer.step()
            self.optimizer.clear_grad()
            if done % self.config["log_freq"] == 0:
                print(f"batch {done}: loss {float(loss):.5f}")

    def train(self):
        os.makedirs(self.config["output_dir"], exist_ok=True)
        for epoch in range(self.max_epochs):
            self.train_epoch()
            paddle.save(self.model.state_dict(), f"{self.config['output_dir']}/{epoch}.pdparams")
