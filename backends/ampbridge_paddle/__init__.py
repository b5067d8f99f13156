"""The PaddlePaddle backend of ampbridge. Importing this package does not import Paddle."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampbridge.backend import Backend

__all__ = ["backend", "recompute"]


def backend() -> Backend:
    """The backend; imports Paddle."""
    from ampbridge_paddle.backend import PaddleBackend

    return PaddleBackend()


def recompute(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``paddle.distributed.fleet.utils.recompute`` that keeps the region it was called in.

    Paddle runs ``function`` a second time during backward, where no region is open any more; on
    its own it would recompute in another precision than it computed.
    """
    from ampbridge_paddle.recomputing import recompute

    return recompute(function, *args, **kwargs)
