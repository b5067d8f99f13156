"""What a pass changes in a model, and where its random numbers come from, put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import paddle

from ampbridge.adapters.backend import Model
from ampbridge.adapters.restoring import remember_attributes
from ampbridge_paddle._private import method
from ampbridge_paddle.step.gradients import replaced_grad

Tensor = Any


@contextmanager
def restored(model: Model) -> Iterator[None]:
    """See ``Backend.restored``."""
    with ExitStack() as stack:
        # Random numbers are Paddle's own, of the host and of the devices in use; its layers hold none.
        for device in {"cpu", paddle.get_device().partition(":")[0]}:
            stack.callback(paddle.set_rng_state, paddle.get_rng_state(device), device)
        remember_attributes(stack, model.sublayers(include_self=True), _remember)
        # On a GPU O2 would cast them with their parameters, and lose digits.
        parameters = model.parameters()
        stack.enter_context(replaced_grad(parameters, [None] * len(parameters)))
        yield


def _remember(stack: ExitStack, held: Any) -> None:
    """Have a tensor's values put back, whether it is a parameter, a buffer or neither."""
    if isinstance(held, paddle.Tensor) and method("Tensor", held, "_is_initialized")():
        with paddle.no_grad():
            stack.callback(_put_back, held, held.clone())


@paddle.no_grad()
def _put_back(tensor: Tensor, values: Tensor) -> None:
    if tensor.numpy().tobytes() != values.numpy().tobytes():
        paddle.assign(values, output=tensor)
