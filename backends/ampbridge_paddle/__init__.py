"""The PaddlePaddle backend of ampbridge. Importing this package does not import Paddle."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampbridge_paddle.fit.high_level import prepare
    from ampbridge_paddle.fit.scale_logs import ScaleLogs

__all__ = ["ScaleLogs", "prepare", "recompute"]


def __getattr__(name: str) -> Any:
    if name in ("ScaleLogs", "prepare"):
        module = "scale_logs" if name == "ScaleLogs" else "high_level"
        return getattr(import_module(f"ampbridge_paddle.fit.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def recompute(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``paddle.distributed.fleet.utils.recompute``.

    In a region or a step Paddle's own runs ``function`` the second time as it ran the first time, so
    that nothing needs to be rewritten; the name is there for symmetry with the other adapters.
    """
    from paddle.distributed.fleet.utils import recompute

    return recompute(function, *args, **kwargs)
