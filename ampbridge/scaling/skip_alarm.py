"""Says when skipping steps has become the problem: NaN, or a scale that falls and falls.

The rule counts, wherever the scaler's state lives (``ampbridge.scaling.scale_rule``). Here two looks at that
state are compared, so that many steps between them, or few, make no difference.
"""

from __future__ import annotations

from typing import NamedTuple

from ampbridge.adapters.calling_code import warn
from ampbridge.errors import OverflowStuckError
from ampbridge.scaling.scale_rule import NANS_BEFORE_WARNING, ScalerConfig, ScaleState


class Told(NamedTuple):
    """How many of the alarms that were due have been sounded; ``ScaleState`` has the same counts."""

    skip_warnings: int = 0
    nan_warnings: int = 0
    stuck_steps: int = 0
    floor_steps: int = 0

    def with_all_of(self, state: ScaleState) -> Told:
        """Those of ``state`` too, which may be an older one."""
        return Told(*(max(getattr(state, name), told) for name, told in self._asdict().items()))

    def pending(self, state: ScaleState) -> ScaleState:
        """``state`` with the alarms alone that are yet to be sounded."""
        counts = {name: getattr(state, name) - told for name, told in self._asdict().items()}
        return state._replace(**counts)


def sound(told: Told, now: ScaleState, config: ScalerConfig) -> None:
    """Say what has become due in ``now``, of Python numbers, beyond what was told.

    Raises:
        OverflowStuckError: for ``max_consecutive_skips`` steps skipped in a row; or, with
            ``at_min_scale="raise"``, for an overflow that should lower a scale at its minimum.
    """
    if now.nan_warnings > told.nan_warnings:
        warn(_nan(now))
    if now.floor_steps > told.floor_steps:
        raise OverflowStuckError(_at_floor(config))
    if now.stuck_steps > told.stuck_steps:
        raise OverflowStuckError(_skipped(now, config.max_consecutive_skips))
    if now.skip_warnings > told.skip_warnings:
        warn(_skipped(now, config.warn_after_skips))


def _at_floor(config: ScalerConfig) -> str:
    return (
        f"The loss scale is at its minimum, {config.min_scale!r}, and the gradients still "
        "overflow.\nHint: a lower min_scale, a lower learning rate, or a bfloat16 policy."
    )


def _skipped(now: ScaleState, due: int | None) -> str:
    """Of the present run; of one that has ended, all that is known is that it was so long."""
    least = due or 1
    goes_on = now.consecutive_skips >= least
    ended = "Nothing is being trained." if goes_on else "It has ended since."
    return (
        f"{max(now.consecutive_skips, least)} steps in a row were skipped; the loss scale is "
        f"{now.scale!r} now. {ended}\n"
        "Hint: result.reason says inf or NaN; train_step(..., name_overflows=True) says where."
    )


def _nan(now: ScaleState) -> str:
    return (
        f"{max(now.consecutive_nans, NANS_BEFORE_WARNING)} steps in a row had NaN in their gradients "
        "and no inf: lowering the loss scale has not helped.\nHint: look for 0/0, log(0) or inf - inf "
        "in the loss; train_step(..., name_overflows=True) says which parameters' gradients are NaN."
    )
