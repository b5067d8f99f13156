"""SimpleNet in NumPy, with the layers that come with ampbridge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampbridge_numpy import nn, optim


def simplenet(weights: Sequence[np.ndarray]) -> nn.Module:
    layers: list[nn.Module] = []
    for weight in weights:
        layers += [linear(weight), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def linear(weight: np.ndarray) -> nn.Linear:
    layer = nn.Linear(*weight.shape)
    layer.weight[...] = weight
    layer.bias[...] = 0.0
    return layer


def optimizer(model: nn.Module, learning_rate: float) -> optim.Optimizer:
    return optim.SGD(model.parameters(), lr=learning_rate)


def loss(model: nn.Module, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return nn.mse_loss(model(x), y)


def tensor(array: np.ndarray) -> np.ndarray:
    return array


def device() -> str:
    return "a CPU"


def wait() -> None:
    """NumPy has done what it was given when it returns."""
