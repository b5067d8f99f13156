import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast


class Trainer:
    def __init__(self, bb_model, optimizer):
        self.bb_model = bb_model
        self.optimizer = optimizer
        self.scaler = GradScaler()

    def clip_gradients(self, limit=5):
        for p in self.bb_model.parameters():
            nn.utils.clip_grad_norm_(p, limit)

    def train_one_epoch(self, loader):
        for seqs, labels in loader:
            self.optimizer.zero_grad()
            with autocast():
                loss = self.bb_model(seqs, labels)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            self.clip_gradients()
            self.scaler.step(self.optimizer)
            self.scaler.update()


trainer = Trainer(build_bert(), torch.optim.Adam(params, lr=1e-4))
trainer.train_one_epoch(train_loader)
