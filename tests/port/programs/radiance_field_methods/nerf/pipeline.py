"""Rays, a field, and their losses."""

from dataclasses import dataclass, field
from typing import Type

import torch
from torch import nn
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function

from nerf.base_config import InstantiateConfig


class _TruncExp(Function):
    """Exponential whose gradient is clamped."""

    @staticmethod
    @custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.exp(x)

    @staticmethod
    @custom_bwd(device_type="cuda")
    def backward(ctx, g):
        x = ctx.saved_tensors[0]
        return g * torch.exp(x.clamp(-15, 15))


trunc_exp = _TruncExp.apply


class Field(nn.Module):
    def __init__(self, hidden_dim=64, frequencies=10, hidden_dim_color=64):
        super().__init__()
        self.register_buffer("bands", 2.0 ** torch.arange(frequencies))
        self.base = nn.Sequential(nn.Linear(6 * frequencies, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, 16))
        self.head = nn.Sequential(nn.Linear(15 + 3, hidden_dim_color), nn.ReLU(), nn.Linear(hidden_dim_color, 3))

    def forward(self, positions, directions):
        angles = (positions[..., None] * self.bands).flatten(-2)
        h = self.base(torch.cat([angles.sin(), angles.cos()], dim=-1))
        rgb = torch.sigmoid(self.head(torch.cat([h[..., 1:], directions.expand(*h.shape[:-1], 3)], dim=-1)))
        return trunc_exp(h[..., 0]), rgb


@dataclass
class PipelineConfig(InstantiateConfig):
    _target: Type = field(default_factory=lambda: Pipeline)
    num_rays_per_batch: int = 4096
    num_samples_per_ray: int = 48
    hidden_dim: int = 64
    interlevel_loss_mult: float = 1.0


class Pipeline(nn.Module):
    def __init__(self, config: PipelineConfig, device: str):
        super().__init__()
        self.config = config
        self.device = device
        self.field = Field(config.hidden_dim).to(device)
        self.proposal = Field(16, 5, 16).to(device)

    def get_param_groups(self):
        return {"proposal_networks": list(self.proposal.parameters()), "fields": list(self.field.parameters())}

    def render(self, network, origins, directions):
        n = self.config.num_samples_per_ray
        t = torch.linspace(0.05, 6.0, n, device=self.device)[None, :, None]
        density, rgb = network(origins[:, None] + t * directions[:, None], directions[:, None])
        alpha = 1 - torch.exp(-density * (6.0 / n))
        transmittance = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-7], -1), -1)[:, :-1]
        weights = alpha * transmittance
        return weights, (weights[..., None] * rgb).sum(dim=1)

    def get_train_loss_dict(self, step: int):
        rays = self.config.num_rays_per_batch
        origins = torch.randn(rays, 3, device=self.device)
        directions = nn.functional.normalize(torch.randn(rays, 3, device=self.device), dim=-1)
        target = torch.rand(rays, 3, device=self.device)
        weights, rgb = self.render(self.field, origins, directions)
        proposed, _ = self.render(self.proposal, origins, directions)
        interlevel = (weights.detach() - proposed).clip(min=0).square().mean()
        return {"rgb_loss": nn.functional.mse_loss(rgb, target),
                "interlevel_loss": self.config.interlevel_loss_mult * interlevel}
