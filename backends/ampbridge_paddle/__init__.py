"""The PaddlePaddle backend of ampbridge. Importing this package does not import Paddle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["recompute"]


def recompute(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``paddle.distributed.fleet.utils.recompute`` that keeps the region it was called in.

    Paddle runs ``function`` a second time during backward, where no region is open any more; on
    its own it would recompute in another precision than it computed.
    """
    from ampbridge_paddle.recomputing import recompute

    return recompute(function, *args, **kwargs)
