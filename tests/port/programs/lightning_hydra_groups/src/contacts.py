"""Which residues of a protein touch."""

import torch
import torch.nn.functional as F
from lightning import LightningModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ContactModule(LightningModule):
    def __init__(self, dim: int, depth: int, lr: float, batch_size: int = 8):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(21, dim)
        layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, batch_first=True, norm_first=True)
        self.trunk = nn.TransformerEncoder(layer, depth)
        self.pair = nn.Bilinear(dim, dim, 1)

    def forward(self, residues):
        h = self.trunk(self.embed(residues))
        n = h.shape[1]
        left = h[:, :, None].expand(-1, -1, n, -1).contiguous()
        right = h[:, None].expand(-1, n, -1, -1).contiguous()
        return self.pair(left, right).squeeze(-1)

    def training_step(self, batch, batch_idx):
        residues, contacts = batch
        loss = F.binary_cross_entropy_with_logits(self(residues), contacts)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def train_dataloader(self):
        residues = torch.randint(0, 21, (256, 48))
        contacts = (torch.rand(256, 48, 48) > 0.9).float()
        return DataLoader(TensorDataset(residues, contacts), self.hparams.batch_size, shuffle=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
