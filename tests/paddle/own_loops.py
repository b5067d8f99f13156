"""Steps as loops of the user's own take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle

import ampbridge as amp


def step_by(loop: str, model: Callable[[Any], Any], optimizer: Any, scaler: amp.GradScaler) -> None:
    """One step, whose gradients are 1."""
    loss = model(paddle.ones([1, 1])).sum()
    scaled = scaler.scale(loss) if "scaler" in loop else loss
    scaled.backward()
    if loop == "step":
        optimizer.step()
    elif loop == "minimize":
        optimizer.minimize(loss)
    elif loop == "scaler.step":
        scaler.step(optimizer)
        scaler.update()
    else:
        scaler.minimize(optimizer, scaled)
    optimizer.clear_grad()
