"""NumPy has no compiler."""

from __future__ import annotations

from collections.abc import Callable

from ampbridge.adapters.backend import LossFn, Program
from ampbridge.errors import UnsupportedError


def compile_step(build: Callable[[LossFn], Program], loss_fn: LossFn) -> Program:
    """See ``Backend.compile``.

    Raises:
        UnsupportedError: always.
    """
    name = getattr(loss_fn, "__name__", repr(loss_fn))
    msg = (
        f"compile=True with {name}: NumPy runs op by op and has no compiler.\n"
        "Hint: amp.train_step(..., compile='auto') compiles where the framework can."
    )
    raise UnsupportedError(msg)
