"""Segmentation of floods in satellite images."""

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class FloodDataModule(LightningDataModule):
    def __init__(self, batch_size: int = 4, num_workers: int = 0, bands: int = 6):
        super().__init__()
        self.save_hyperparameters()
        self.num_classes = 2

    def _loader(self, seed, shuffle=False):
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(32, self.hparams.bands, 64, 64, generator=generator)
        labels = torch.randint(0, self.num_classes, (32, 64, 64), generator=generator)
        data = TensorDataset(images, labels)
        return DataLoader(data, self.hparams.batch_size, shuffle, num_workers=self.hparams.num_workers)

    def train_dataloader(self):
        return self._loader(0, shuffle=True)

    def val_dataloader(self):
        return self._loader(1)


class SegmentationTask(LightningModule):
    def __init__(self, num_classes: int, bands: int = 6, width: int = 32, lr: float = 1e-4):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(bands, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, num_classes, 1),
        )
        self.criterion = nn.CrossEntropyLoss(ignore_index=-1)

    def forward(self, images):
        return self.net(images)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = self.criterion(self(images), labels)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.log("val/loss", self.criterion(self(images), labels))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
