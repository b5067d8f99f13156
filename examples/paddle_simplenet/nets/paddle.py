"""SimpleNet in PaddlePaddle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F


def simplenet(weights: Sequence[np.ndarray]) -> nn.Layer:
    layers: list[nn.Layer] = []
    for weight in weights:
        layers += [linear(weight), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def linear(weight: np.ndarray) -> nn.Linear:
    layer = nn.Linear(*weight.shape)  # its bias is zero
    layer.weight.set_value(weight)
    return layer


def optimizer(model: nn.Layer, learning_rate: float) -> paddle.optimizer.Optimizer:
    return paddle.optimizer.SGD(learning_rate, parameters=model.parameters())


def loss(model: nn.Layer, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x), y)


def tensor(array: np.ndarray) -> Tensor:
    return paddle.to_tensor(array)


def device() -> str:
    place = paddle.get_device()
    if place == "cpu":
        return "a CPU"
    return paddle.device.cuda.get_device_name() if place.startswith("gpu") else place


def wait() -> None:
    if paddle.get_device() != "cpu":
        paddle.device.synchronize()
