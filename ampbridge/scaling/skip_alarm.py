"""Alarms about repeated skips: NaN, or a scale that keeps falling.

The rule counts skips and due alarms on the device of the scaler's state
(``ampbridge.scaling.scale_rule``). This module compares the counts of two reads of that state, so no
alarm is lost however many steps are between them.
"""

from __future__ import annotations

from typing import NamedTuple

from ampbridge.adapters.calling_code import warn
from ampbridge.errors import OverflowStuckError
from ampbridge.scaling.scale_rule import ALARMS, NANS_BEFORE_WARNING, ScalerConfig, ScaleState


class Told(NamedTuple):
    """The numbers of alarms that were given; ``ScaleState`` counts those that are due."""

    skip_warnings: int = 0
    nan_warnings: int = 0
    stuck_steps: int = 0
    floor_steps: int = 0

    @classmethod
    def due_in(cls, state: ScaleState) -> Told:
        """The numbers of alarms that are due in ``state``, on the host."""
        return cls(*state[ALARMS])

    def with_all_of(self, due: Told) -> Told:
        """These alarms and those of ``due``, which may be of an older state."""
        return Told(*map(max, self, due))

    def pending(self, state: ScaleState) -> ScaleState:
        """``state`` with only the alarms that were not given yet."""
        counts = {name: getattr(state, name) - count for name, count in self._asdict().items()}
        return state._replace(**counts)


def sound(given: Told, now: ScaleState, config: ScalerConfig, in_own_loop: bool) -> None:
    """Give the alarms that are due in ``now``, on the host, and not among those ``given``.

    ``in_own_loop``: whether it may be a loop that has to clear the gradients of each step.
    """
    if now.nan_warnings > given.nan_warnings:
        hint = (
            "look for 0/0, log(0) or inf - inf in the loss; train_step(..., name_overflows=True) says "
            "which parameters' gradients are NaN."
        )
        if in_own_loop:
            hint = (
                "where gradients are stored, optimizer.zero_grad() after each step (in Paddle "
                f"clear_grad()), or an inf stays in .grad; else {hint}"
            )
        warn(
            f"{max(now.consecutive_nans, NANS_BEFORE_WARNING)} steps in a row had NaN in their gradients "
            f"and no inf: lowering the loss scale has not helped.\nHint: {hint}"
        )
    if now.floor_steps > given.floor_steps:
        raise OverflowStuckError(
            f"The loss scale is at its minimum, {config.min_scale!r}, and the gradients still "
            "overflow.\nHint: a lower min_scale, a lower learning rate, or a bfloat16 policy."
        )
    if now.stuck_steps > given.stuck_steps:
        raise OverflowStuckError(_skipped(now, config.max_consecutive_skips))
    if now.skip_warnings > given.skip_warnings:
        warn(_skipped(now, config.warn_after_skips))


def _skipped(now: ScaleState, due: int | None) -> str:
    """The message for a run of skips. If the run has ended, only its least length is known."""
    least = due or 1
    goes_on = now.consecutive_skips >= least
    ended = "Nothing is being trained." if goes_on else "It has ended since."
    return (
        f"{max(now.consecutive_skips, least)} steps in a row were skipped; the loss scale is "
        f"{now.scale!r} now. {ended}\n"
        "Hint: result.reason says inf or NaN; train_step(..., name_overflows=True) says where."
    )
