"""What the framework's objects are, and how a user makes them."""

from __future__ import annotations

from typing import Any

import paddle

from ampbridge.adapters.backend import Kind
from ampbridge_paddle._private import method
from ampbridge_paddle.step.hybrid_groups import without_wrappers

EXAMPLES = {
    "model": "model = paddle.nn.Linear(4, 2)",
    "optimizer": "optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())",
    "float32 model": "model.float()",
    "loss_fn": "def loss_fn(model, x, y): return criterion(model(x), y)",
}


def kind(obj: object) -> Kind | None:
    """See ``Backend.kind``."""
    if isinstance(obj, paddle.nn.Layer):
        is_loss = any(base.__module__ == "paddle.nn.layer.loss" for base in type(obj).__mro__)
        return "loss" if is_loss else "model"
    if isinstance(obj, paddle.optimizer.lr.LRScheduler):
        return "scheduler"
    return "optimizer" if isinstance(without_wrappers(obj), paddle.optimizer.Optimizer) else None


def moves_rates_of(scheduler: object, optimizer: Any) -> bool:
    """See ``Backend.moves_rates_of``: Paddle's schedulers are given to the optimizer.

    One within another (``LinearWarmup``) is advanced by that.
    """
    if not isinstance(scheduler, paddle.optimizer.lr.LRScheduler):
        return True
    return method("Optimizer", without_wrappers(optimizer), "_learning_rate") is scheduler
