"""SimpleNet in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def simplenet(weights: Sequence[np.ndarray]) -> nn.Module:
    layers: list[nn.Module] = []
    for weight in weights:
        layers += [linear(weight), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def linear(weight: np.ndarray) -> nn.Linear:
    layer = nn.Linear(*weight.shape, device=DEVICE)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight).T)
        layer.bias.zero_()
    return layer


def optimizer(model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=learning_rate)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x), y)


def tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array).to(DEVICE)


def device() -> str:
    return torch.cuda.get_device_name() if DEVICE.type == "cuda" else "a CPU"


def wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
