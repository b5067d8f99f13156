"""The same few steps by a framework's own loop, by hand with a GradScaler, and by ``train_step``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import ampbridge as amp

Way = Literal["native", "by hand", "train_step"]


def losses_of(
    way: Way, loss_fn: Any, model: Any, optimizer: Any, clear: Callable[[], Any], x: Any
) -> Iterator[float]:
    """The losses of three steps in float32 on one batch, each when its step has been taken."""
    scaler = amp.GradScaler(8.0)
    step = amp.train_step(loss_fn, model, optimizer, policy="O0", scaler=scaler)
    for _ in range(3):
        if way == "train_step":
            yield float(step(x).loss)
            continue
        loss = loss_fn(model, x)
        (loss if way == "native" else scaler.scale(loss)).backward()
        if way == "native":
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        clear()
        yield float(loss.item())
