"""Says when skipping steps has become the problem: NaN, or a scale that falls and falls."""

from __future__ import annotations

import warnings

from ampbridge.backend import FINITE, NAN
from ampbridge.errors import AmpBridgeWarning, OverflowStuckError
from ampbridge.scale_rule import ScalerConfig, ScaleState

NANS_BEFORE_WARNING = 3


class SkipAlarm:
    """Watches skipped steps, in the order in which it is told of them."""

    def __init__(self) -> None:
        self._nans_in_a_row = 0

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
            raise OverflowStuckError(_stuck(skips, scale))
        if skips == config.warn_after_skips:
            warnings.warn(_stuck(skips, scale), AmpBridgeWarning, stacklevel=4)


def _check_floor(before: ScaleState, config: ScalerConfig) -> None:
    due = int(before.bad) + 1 >= config.backoff_interval
    at_floor = config.dynamic and float(before.scale) == config.min_scale
    if config.at_min_scale == "raise" and at_floor and due:
        msg = (
            f"The loss scale is at its minimum, {config.min_scale!r}, and the gradients still "
            "overflow.\nHint: a lower min_scale, a lower learning rate, or a bfloat16 policy."
        )
        raise OverflowStuckError(msg)


def _stuck(skips: int, scale: float) -> str:
    return (
        f"{skips} steps in a row were skipped; the loss scale was {scale!r} in the last one. Nothing "
        "is being trained.\n"
        "Hint: result.reason says inf or NaN; train_step(..., name_overflows=True) says where."
    )


def _warn_of_nan(steps: int) -> None:
    msg = (
        f"{steps} steps in a row had NaN in their gradients and no inf: lowering the loss scale cannot "
        "help.\nHint: look for 0/0, log(0) or inf - inf in the loss; train_step(..., "
        "name_overflows=True) says which parameters' gradients are NaN."
    )
    warnings.warn(msg, AmpBridgeWarning, stacklevel=5)
