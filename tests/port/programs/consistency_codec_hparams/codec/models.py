import torch
from torch import nn

from .hparams import hparams


class ConsistencyUNet(nn.Module):
    """Encodes a spectrogram, and decodes noise beside the code to a spectrogram."""

    def __init__(self):
        super().__init__()
        c = hparams.base_channels
        self.encoder = nn.Sequential(nn.Conv1d(hparams.hop, c, 3, padding=1), nn.SiLU())
        self.embed = nn.Linear(1, c)
        self.inp = nn.Conv1d(hparams.hop, c, 3, padding=1)
        self.norm = nn.GroupNorm(4, c)
        self.out = nn.Conv1d(c, hparams.hop, 3, padding=1)

    def denoise(self, code, noisy, sigma):
        h = self.inp(noisy) + code + self.embed(sigma.log().unsqueeze(-1) / 4).unsqueeze(-1)
        skip = 0.25 / (sigma**2 + 0.25)
        return skip[:, None, None] * noisy + self.out(nn.functional.silu(self.norm(h)))

    def forward(self, data, noisy, noisier, sigma, sigma_plus_one):
        code = self.encoder(data)
        with torch.no_grad():
            target = self.denoise(code, noisy, sigma)
        return target, self.denoise(code, noisier, sigma_plus_one)
