"""Mixed precision for TensorFlow 2 with Keras 3. Importing this imports neither.

For ``Model.fit``: ``LossScaleOptimizer``, ``ScaleLogs``, ``SkipWatch`` and ``PolicySchedule``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampbridge_tensorflow.fit.callbacks import PolicySchedule, ScaleLogs, SkipWatch
    from ampbridge_tensorflow.fit.loss_scale_optimizer import LossScaleOptimizer

__all__ = ["LossScaleOptimizer", "PolicySchedule", "ScaleLogs", "SkipWatch"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = "loss_scale_optimizer" if name == "LossScaleOptimizer" else "callbacks"
        return getattr(import_module(f"ampbridge_tensorflow.fit.{module}"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
