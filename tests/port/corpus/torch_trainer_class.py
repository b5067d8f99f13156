"""Settings on self, the scaler too, and a helper method that returns the context."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model, optimizer, accumulate=4):
        self.model = model
        self.optimizer = optimizer
        self.amp_dtype = torch.float16
        self.accumulate = 4
        self.max_norm = 5.0
        self.scaler = torch.amp.GradScaler(init_scale=4096.0)

    def autocast(self):
        return torch.autocast("cuda", dtype=self.amp_dtype)

    def evaluate(self, batch):
        with torch.no_grad(), self.autocast():
            return self.model(batch)

    def train_epoch(self, loader):
        for i, (x, y) in enumerate(loader):
            with self.autocast():
                loss = nn.functional.cross_entropy(self.model(x), y) / self.accumulate
            self.scaler.scale(loss).backward()
            if (i + 1) % self.accumulate == 0:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
