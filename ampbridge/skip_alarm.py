"""Says when skipping steps has become the problem: NaN, or a scale that falls and falls."""

from __future__ import annotations

import warnings
from typing import NamedTuple

from ampbridge.backend import FINITE, NAN
from ampbridge.errors import AmpBridgeWarning, OverflowStuckError
from ampbridge.scale_rule import ScalerConfig, ScaleState

# inf times 0, and inf minus inf, are NaN: a scale that is merely too high may show as NaN alone. By
# then it has fallen by a factor of 256.
NANS_BEFORE_WARNING = 8


class SkippedRun(NamedTuple):
    """Skipped steps in a row, counted where they ran.

    Attributes:
        skips: how many; 0 if the last step was finite.
        nans: how many of them, at the end and in a row, had NaN and no inf.
        at_floor: how many should have lowered a scale that was at its minimum.
        scale: the loss scale after them.
    """

    skips: int
    nans: int
    at_floor: int
    scale: float


class SkipAlarm:
    """Watches skipped steps: each of them, in their order, or what many have come to."""

    def __init__(self) -> None:
        self._nans_in_a_row = 0
        self._seen = SkippedRun(0, 0, 0, 1.0)

    def observe(self, found: int, before: ScaleState, config: ScalerConfig) -> None:
        """Look at one step: what was found in its gradients, and the state it began with.

        Raises:
            OverflowStuckError: after more than ``max_consecutive_skips`` steps skipped in a row, or,
                with ``at_min_scale="raise"``, at an overflow that should lower a scale at its floor.
        """
        self._nans_in_a_row = self._nans_in_a_row + 1 if found == NAN else 0
        if found == FINITE:
            return
        if self._nans_in_a_row == NANS_BEFORE_WARNING and config.warn_after_skips is not None:
            _warn_of_nan(NANS_BEFORE_WARNING)
        skips, scale = int(before.consecutive_skips) + 1, float(before.scale)
        _check_floor(before, config)
        if config.max_consecutive_skips is not None and skips > config.max_consecutive_skips:
            raise OverflowStuckError(_stuck(skips, f"was {scale!r} in the last one"))
        if skips == config.warn_after_skips:
            text = _stuck(skips, f"was {scale!r} in the last one")
            warnings.warn(text, AmpBridgeWarning, stacklevel=4)

    def look(self, run: SkippedRun, config: ScalerConfig) -> None:
        """Look at what all steps so far have come to, after any number of them.

        What ``observe`` would have said since the last look is said now, once; not of a run that has
        ended in between.

        Raises:
            OverflowStuckError: as ``observe``.
        """
        before = self._seen if run.skips >= self._seen.skips else SkippedRun(0, 0, 0, 1.0)
        self._seen = run
        if before.nans < NANS_BEFORE_WARNING <= run.nans and config.warn_after_skips is not None:
            _warn_of_nan(run.nans)
        if config.at_min_scale == "raise" and run.at_floor > before.at_floor:
            raise OverflowStuckError(_at_floor(config))
        if config.max_consecutive_skips is not None and run.skips > config.max_consecutive_skips:
            raise OverflowStuckError(_stuck(run.skips, f"is {run.scale!r} now"))
        if config.warn_after_skips is not None and (
            before.skips < config.warn_after_skips <= run.skips
        ):
            text = _stuck(run.skips, f"is {run.scale!r} now")
            warnings.warn(text, AmpBridgeWarning, stacklevel=4)


def _check_floor(before: ScaleState, config: ScalerConfig) -> None:
    due = int(before.bad) + 1 >= config.backoff_interval
    at_floor = config.dynamic and float(before.scale) == config.min_scale
    if config.at_min_scale == "raise" and at_floor and due:
        raise OverflowStuckError(_at_floor(config))


def _at_floor(config: ScalerConfig) -> str:
    return (
        f"The loss scale is at its minimum, {config.min_scale!r}, and the gradients still "
        "overflow.\nHint: a lower min_scale, a lower learning rate, or a bfloat16 policy."
    )


def _stuck(skips: int, scale: str) -> str:
    return (
        f"{skips} steps in a row were skipped; the loss scale {scale}. Nothing is being trained.\n"
        "Hint: result.reason says inf or NaN; train_step(..., name_overflows=True) says where."
    )


def _warn_of_nan(steps: int) -> None:
    msg = (
        f"{steps} steps in a row had NaN in their gradients and no inf: lowering the loss scale has "
        "not helped.\nHint: look for 0/0, log(0) or inf - inf in the loss; train_step(..., "
        "name_overflows=True) says which parameters' gradients are NaN."
    )
    warnings.warn(msg, AmpBridgeWarning, stacklevel=5)
