"""Trains a detector: batches are accumulated up to the nominal batch size."""

import math
import os
import time

import numpy as np
import torch
from torch import distributed as dist
from torch import nn, optim

from yolo.cfg import DEFAULT_CFG, get_cfg
from yolo.utils.model import DetectionModel, build_dataloader
from yolo.utils.torch_utils import TORCH_2_4, ModelEMA, autocast, check_amp

RANK = int(os.getenv("RANK", -1))


class BaseTrainer:
    def __init__(self, cfg=DEFAULT_CFG, overrides=None):
        self.args = get_cfg(cfg, overrides)
        self.device = torch.device(self.args.device)
        self.batch_size = self.args.batch
        self.epochs = self.args.epochs
        self.amp = None
        self.scaler = None
        self.ema = None

    def _setup_train(self, world_size):
        self.model = self.get_model().to(self.device)

        self.amp = torch.tensor(self.args.amp).to(self.device)
        if self.amp and RANK in {-1, 0}:
            self.amp = torch.tensor(check_amp(self.model), device=self.device)
        if RANK > -1 and world_size > 1:
            dist.broadcast(self.amp.int(), src=0)
        self.amp = bool(self.amp)
        self.scaler = (
            torch.amp.GradScaler("cuda", enabled=self.amp)
            if TORCH_2_4
            else torch.cuda.amp.GradScaler(enabled=self.amp)
        )
        if world_size > 1:
            self.model = nn.parallel.DistributedDataParallel(self.model, device_ids=[RANK])

        batch_size = self.batch_size // max(world_size, 1)
        self.train_loader = self.get_dataloader(self.args.data, batch_size)
        self.ema = ModelEMA(self.model)
        self.accumulate = max(round(self.args.nbs / self.batch_size), 1)
        weight_decay = self.args.weight_decay * self.batch_size * self.accumulate / self.args.nbs
        self.optimizer = optim.SGD(
            self.model.parameters(),
            lr=self.args.lr0,
            momentum=self.args.momentum,
            nesterov=True,
            weight_decay=weight_decay,
        )
        self.lf = lambda x: max(1 - x / self.epochs, 0) * (1.0 - self.args.lrf) + self.args.lrf
        self.scheduler = optim.lr_scheduler.LambdaLR(self.optimizer, lr_lambda=self.lf)

    def train(self):
        world_size = int(os.getenv("WORLD_SIZE", 1))
        if world_size > 1:
            dist.init_process_group("nccl")
        self._do_train(world_size)

    def _do_train(self, world_size=1):
        self._setup_train(world_size)
        nb = len(self.train_loader)
        nw = max(round(self.args.warmup_epochs * nb), 100) if self.args.warmup_epochs > 0 else -1
        last_opt_step = -1
        start = time.time()
        self.optimizer.zero_grad()
        for epoch in range(self.epochs):
            self.model.train()
            for i, batch in enumerate(self.train_loader):
                ni = i + nb * epoch
                if ni <= nw:
                    xi = [0, nw]
                    self.accumulate = max(
                        1, int(np.interp(ni, xi, [1, self.args.nbs / self.batch_size]).round())
                    )
                    for x in self.optimizer.param_groups:
                        x["lr"] = np.interp(ni, xi, [0.0, self.args.lr0 * self.lf(epoch)])
                        momenta = [self.args.warmup_momentum, self.args.momentum]
                        x["momentum"] = np.interp(ni, xi, momenta)

                with autocast(self.amp):
                    batch = self.preprocess_batch(batch)
                    loss, self.loss_items = self.model(batch)
                    self.loss = loss.sum()
                    if RANK != -1:
                        self.loss *= world_size

                self.scaler.scale(self.loss).backward()
                if ni - last_opt_step >= self.accumulate:
                    self.optimizer_step()
                    last_opt_step = ni
            self.scheduler.step()
            if RANK in {-1, 0}:
                print(f"{epoch}: {self.loss_items.tolist()}, {time.time() - start:.0f}s")
                self.save_model(epoch)

    def optimizer_step(self):
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=10.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.ema:
            self.ema.update(self.model)

    def save_model(self, epoch):
        torch.save({"epoch": epoch, "ema": self.ema.ema.half().state_dict()}, "last.pt")
        self.ema.ema.float()

    def preprocess_batch(self, batch):
        return batch

    def get_model(self):
        raise NotImplementedError("get_model is of a task")

    def get_dataloader(self, path, batch_size):
        raise NotImplementedError("get_dataloader is of a task")


class DetectionTrainer(BaseTrainer):
    def get_model(self):
        return DetectionModel(gains=(self.args.box, self.args.cls))

    def get_dataloader(self, path, batch_size):
        stride = math.ceil(self.args.imgsz / 32) * 32
        return build_dataloader(path, batch_size, stride, self.args.workers)

    def preprocess_batch(self, batch):
        batch["img"] = batch["img"].to(self.device, non_blocking=True).float() / 255
        batch["boxes"] = batch["boxes"].to(self.device)
        return batch
