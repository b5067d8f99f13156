"""The dtype in which a model's ``state_dict`` gives its floating-point tensors."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import paddle

from ampbridge_paddle._private import method
from ampbridge_paddle.autocast.rounding import round_to

Tensor = Any


class SavedIn:
    """A hook of ``state_dict``, as ``paddle.amp.decorate(save_dtype=...)`` has one, by exact rounding.

    Tensors that are in ``dtype`` already stay themselves, so that values can be loaded into them.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    @paddle.no_grad()
    def __call__(self, state: MutableMapping[str, Tensor]) -> None:
        for key, value in state.items():
            if paddle.is_floating_point(value) and value.dtype != getattr(paddle, self._dtype):
                state[key] = self._saved(value)

    def _saved(self, value: Tensor) -> Tensor:
        exact = value.detach()
        if exact.dtype == paddle.float32:
            exact = round_to(exact, self._dtype)
        saved = exact.astype(self._dtype)
        saved.name = value.name  # as Paddle's own hook does
        return saved


def save_in(model: Any, dtype: str) -> None:
    """Let ``model.state_dict()`` give floating-point tensors in ``dtype``."""
    model.register_state_dict_hook(SavedIn(dtype))


def save_as_held(model: Any) -> None:
    """Take ``save_in`` back, also on a copy of the model."""
    hooks = method("Layer", model, "_state_dict_hooks")
    for number in [number for number, hook in hooks.items() if isinstance(hook, SavedIn)]:
        del hooks[number]
