"""The classifier in PyTorch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def classifier(weights: Mapping[str, np.ndarray]) -> nn.Module:
    layers = OrderedDict(
        dense_1=linear(weights["dense_1"]),
        relu_1=nn.ReLU(),
        dense_2=linear(weights["dense_2"]),
        relu_2=nn.ReLU(),
        dense_logits=linear(weights["dense_logits"]),
        predictions=nn.Softmax(dim=-1),
    )
    return nn.Sequential(layers)


def linear(weight: np.ndarray) -> nn.Linear:
    layer = nn.Linear(*weight.shape, device=DEVICE)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight).T)
        layer.bias.zero_()
    return layer


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9, eps=1e-7)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(model(x).clamp_min(1e-7).log(), y)


@torch.no_grad()
def predict(model: nn.Module, x: np.ndarray) -> np.ndarray:
    return model(torch.from_numpy(x).to(DEVICE)).cpu().numpy()
