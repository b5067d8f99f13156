import argparse

import torch

from . import config
from .base import BaseTrainer
from .models import build_model


class Trainer(BaseTrainer):
    def train_epoch(self, loader):
        self.optimizer.zero_grad()
        for step, (images, target) in enumerate(loader):
            with self.autocast():
                loss = torch.nn.functional.cross_entropy(self.model(images), target)
            loss = loss / config.ACCUMULATION
            self.loss_scaler(
                loss,
                self.optimizer,
                clip_grad=config.CLIP,
                parameters=self.model.parameters(),
                need_update=(step + 1) % config.ACCUMULATION == 0,
            )
            if (step + 1) % config.ACCUMULATION == 0:
                self.optimizer.zero_grad()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=90)
    args = parser.parse_args()
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    trainer = Trainer(model, optimizer)
    loader = torch.utils.data.DataLoader(args.data)
    for epoch in range(args.epochs):
        trainer.train_epoch(loader)


if __name__ == "__main__":
    main()
