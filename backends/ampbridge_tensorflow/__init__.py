"""Mixed precision for TensorFlow 2 with Keras 3. Importing this imports neither.

For ``Model.fit``: ``LossScaleOptimizer``, ``ScaleLogs``, ``SkipWatch`` and ``PolicySchedule``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampbridge_tensorflow.fit.loss_scale_optimizer import LossScaleOptimizer
    from ampbridge_tensorflow.fit.policy_schedule import PolicySchedule
    from ampbridge_tensorflow.fit.scale_logs import ScaleLogs
    from ampbridge_tensorflow.fit.skip_watch import SkipWatch

__all__ = ["LossScaleOptimizer", "PolicySchedule", "ScaleLogs", "SkipWatch"]

_MODULES = {
    "LossScaleOptimizer": "ampbridge_tensorflow.fit.loss_scale_optimizer",
    "PolicySchedule": "ampbridge_tensorflow.fit.policy_schedule",
    "ScaleLogs": "ampbridge_tensorflow.fit.scale_logs",
    "SkipWatch": "ampbridge_tensorflow.fit.skip_watch",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
