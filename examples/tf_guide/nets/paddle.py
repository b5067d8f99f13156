"""The classifier in PaddlePaddle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

import ampbridge as amp
import ampbridge_paddle

if TYPE_CHECKING:
    from guide import Report, Task


def classifier(weights: Mapping[str, np.ndarray]) -> nn.Layer:
    return nn.Sequential(
        ("dense_1", linear(weights["dense_1"])),
        ("relu_1", nn.ReLU()),
        ("dense_2", linear(weights["dense_2"])),
        ("relu_2", nn.ReLU()),
        ("dense_logits", linear(weights["dense_logits"])),
        ("predictions", nn.Softmax(axis=-1)),
    )


def linear(weight: np.ndarray) -> nn.Linear:
    layer = nn.Linear(*weight.shape)  # its bias is zero
    layer.weight.set_value(weight)
    return layer


def optimizer(model: nn.Layer) -> paddle.optimizer.Optimizer:
    return paddle.optimizer.RMSProp(1e-3, rho=0.9, epsilon=1e-7, parameters=model.parameters())


def loss(model: nn.Layer, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def cross_entropy(probabilities: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(probabilities.clip(min=1e-7).log(), y)


@paddle.no_grad()
def predict(model: nn.Layer, x: np.ndarray) -> np.ndarray:
    return model(paddle.to_tensor(x)).numpy()


def fit(network: nn.Layer, optimizer: Any, task: Task, report: Report) -> None:
    """Paddle's ``Model.fit``."""
    scaler = amp.GradScaler(task.init_scale) if task.policy.needs_scaling else None
    accuracy = paddle.metric.Accuracy()
    model = paddle.Model(network)
    ampbridge_paddle.prepare(
        model, optimizer, cross_entropy, accuracy, policy=task.policy, scaler=scaler
    )
    paddle.seed(0)
    model.fit(
        paddle.io.TensorDataset(list(task.training)),
        paddle.io.TensorDataset(list(task.held_out)),
        batch_size=task.batch_size,
        epochs=task.epochs,
        verbose=0,
        callbacks=[Reporting(report, scaler)],
    )


class Reporting(paddle.callbacks.Callback):
    """Calls ``report`` when an epoch has been evaluated."""

    def __init__(self, report: Report, scaler: amp.GradScaler | None) -> None:
        super().__init__()
        self.report, self.scaler = report, scaler
        self.losses: list[float] = []

    def on_train_batch_end(self, step: int, logs: dict[str, Any]) -> None:
        self.losses.append(float(logs["loss"][0]))

    def on_eval_end(self, logs: dict[str, Any]) -> None:
        scale = self.scaler.get_scale() if self.scaler else 1.0
        self.report(float(np.mean(self.losses)), logs["acc"], scale)
        self.losses.clear()
