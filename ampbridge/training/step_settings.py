"""The settings of a training step that are numbers and words, and what they may be."""

from __future__ import annotations

from typing import Any, Literal

from ampbridge.errors import ArgumentError, listed
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import Schedule

OnOverflow = Literal["drop_step", "drop_microbatch"]

ON_OVERFLOW = ("drop_step", "drop_microbatch")


def checked_accumulate(value: Any) -> int:
    """Micro-batches a step.

    Raises:
        ArgumentError: unless it is a whole number from 1.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    msg = f"Passed accumulate={value!r}; allowed is a whole number from 1.\nHint: accumulate=4"
    raise ArgumentError(msg)


def checked_on_overflow(value: Any, plan: Policy | Schedule) -> OnOverflow:
    """What an overflow in a micro-batch drops.

    Raises:
        ArgumentError: for another word, or one that ``plan`` cannot go with.
    """
    if value not in ON_OVERFLOW:
        msg = f"Passed on_overflow={value!r}; allowed are {listed(ON_OVERFLOW)}.\n"
        raise ArgumentError(msg + "Hint: on_overflow='drop_step'")
    if value == "drop_microbatch" and isinstance(plan, Schedule) and plan.counts_skips:
        msg = (
            f"on_overflow='drop_microbatch' skips no step, which {plan!r} waits for.\n"
            "Hint: on_overflow='drop_step', or a schedule by steps or by the loss."
        )
        raise ArgumentError(msg)
    chosen: OnOverflow = value
    return chosen


def checked_clip_norm(value: Any) -> float | None:
    """The largest joint 2-norm of the gradients; None for any.

    Raises:
        ArgumentError: unless it is positive.
    """
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return float(value)
    msg = f"Passed clip_norm={value!r}; allowed is a positive number or None.\nHint: clip_norm=1.0"
    raise ArgumentError(msg)
