"""Recompute (activation checkpointing) that runs twice in the same region."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from paddle.distributed.fleet.utils import recompute as native_recompute

from ampbridge_paddle import simulation


def recompute(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``fleet.utils.recompute`` that enters the present region again during backward.

    On a device with 16-bit kernels Paddle keeps its own autocast state, so nothing is added there.
    """
    region = simulation.active_region()
    if region is None:
        return native_recompute(function, *args, **kwargs)

    @wraps(getattr(function, "forward", function))
    def in_region(*inputs: Any, **options: Any) -> Any:
        with simulation.entering(region):
            return function(*inputs, **options)

    return native_recompute(in_region, *args, **kwargs)
