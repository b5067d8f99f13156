"""The network and its loss."""

import torch
import torch.nn.functional as F
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, dim, channels=3):
        super().__init__()
        self.channels = channels
        self.time = nn.Sequential(nn.Linear(1, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.inlet = nn.Conv2d(channels, dim, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(8, dim), nn.SiLU(), nn.Conv2d(dim, dim, 3, padding=1))
            for _ in range(4)
        )
        self.outlet = nn.Conv2d(dim, channels, 1)

    def forward(self, x, time):
        h = self.inlet(x) + self.time(time[:, None])[:, :, None, None]
        for block in self.blocks:
            h = h + block(h)
        return self.outlet(h)


class GaussianDiffusion(nn.Module):
    def __init__(self, model, *, image_size, timesteps=1000):
        super().__init__()
        self.model = model
        self.image_size = image_size
        self.num_timesteps = timesteps
        betas = torch.linspace(1e-4, 0.02, timesteps)
        self.register_buffer("alphas_cumprod", torch.cumprod(1.0 - betas, dim=0))

    def forward(self, images):
        t = torch.randint(0, self.num_timesteps, (images.shape[0],), device=images.device)
        alpha = self.alphas_cumprod[t][:, None, None, None]
        noise = torch.randn_like(images)
        noisy = alpha.sqrt() * images + (1 - alpha).sqrt() * noise
        return F.mse_loss(self.model(noisy, t / self.num_timesteps), noise)

    @torch.inference_mode()
    def sample(self, batch_size, steps=50):
        shape = (batch_size, self.model.channels, self.image_size, self.image_size)
        x = torch.randn(shape, device=self.alphas_cumprod.device)
        for step in reversed(range(steps)):
            t = torch.full((batch_size,), step / steps, device=x.device)
            x = x - self.model(x, t) / steps
        return x
