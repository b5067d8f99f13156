"""How a float32 weight is kept in 16 bits, or in twice 16, between two steps. Written once, here.

Moments of the optimizer are rounded by chance: to nearest, an average that changes by less than half a
unit at a time stands still.

On the bits of float32, as int32 of any framework: a bfloat16 is their upper half. What is added to them
is added to the magnitude, and a sum beyond the largest one is inf. NaN stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import and_
from typing import TYPE_CHECKING, Any

import numpy as np

from ampbridge.adapters.calling_code import warn
from ampbridge.adapters.scoped import Scoped
from ampbridge.errors import ArgumentError, CallOrderError, first_of

if TYPE_CHECKING:
    from ampbridge.policies.policy import Policy

Where = Callable[[Any, Any, Any], Any]
Masked = Callable[[Any, int], Any]
"""A framework's ``&`` of bits and a number."""

_UPPER, _HALF = -0x10000, 0x8000
_MAGNITUDE, _INF = 0x7FFFFFFF, 0x7F800000


def rounded_by_chance(bits: Any, draws: Any, where: Where, masked: Masked = and_) -> Any:
    """One of the two bfloat16 next to each value, by the remainder's probability; as bits of float32.

    Unbiased, and what is a bfloat16 stays one. ``draws`` are whole numbers from 0 up to 65535.
    """
    return where(masked(bits, _MAGNITUDE) > _INF, bits, masked(bits + draws, _UPPER))


def keeps_low(policy: Policy) -> bool:
    """Whether weights or slots are rounded to 16 bits between two steps, and nothing has the rest."""
    return {policy.variable_dtype, policy.slots} != {"float32"}


def is_moment(slot: Any, parameter: Any) -> bool:
    """Whether a slot has a number for each of its parameter's; counters and other scalars have not."""
    shape = tuple(getattr(slot, "shape", ()))
    return bool(shape) and shape == tuple(parameter.shape)


def split(bits: Any, where: Where, masked: Masked = and_) -> tuple[Any, Any]:
    """The bfloat16 next to each value, as bits of float32, and the rest: a compensation in int16.

    Both together are the float32. A value in the middle goes to the larger magnitude, for which alone
    the rest of each value fits.
    """
    upper = where(masked(bits, _MAGNITUDE) > _INF, bits, masked(bits + _HALF, _UPPER))
    return upper, bits - upper


def joined(upper: Any, rest: Any, where: Where, masked: Masked = and_) -> Any:
    """The bits of which ``split`` made ``upper`` and ``rest``.

    Where others have written to ``upper`` since, the rest is within half a unit of it; of a zero it may be
    below all magnitudes, and counts as none.
    """
    return where((masked(upper, _MAGNITUDE) == 0) & (rest < 0), upper, upper + rest)


def are_bfloat16(values: np.ndarray[Any, Any]) -> bool:
    """Whether no float32 number has further bits; a NaN may have. It takes one pass and no memory."""
    return not np.bitwise_or.reduce(values.view(np.uint32), axis=None) & 0xFFFF


# -- what is said

slots_told: Scoped[bool] = Scoped("ampbridge rounded slots", False)
"""Whether it has been said of the slots that are rounded now: at the load of a checkpoint."""


def warn_of_rounded_slots(policy: Policy, dtype: str, saved: Policy | None = None) -> None:
    """Warn that float32 slots are rounded to ``dtype``: those of a checkpoint, if ``saved`` is its policy."""
    if slots_told.get():
        return
    name = "masters" if policy.slots == "float32" else "slots"
    exact = policy.replace(masters=policy.masters or "float32", slots="float32")
    were, hint = "are", repr(exact)
    if saved is not None:
        were, hint = "were saved in", f"amp.train_step(..., policy={saved!r})"
    warn(
        f"The optimizer's slots {were} float32. {name}={getattr(policy, name)!r} rounds those of low "
        f"parameters to {dtype}: their further digits are lost.\nHint: {hint}"
    )


def warn_of_rounded_weights(policy: Policy, were: str, hint: str) -> None:
    """Warn that weights which ``were`` float32 are rounded for ``policy``."""
    warn(
        f"The weights were {were}. masters={policy.masters!r} rounds them to {policy.dtype}: what small "
        f"updates have added up to under half a unit in the last place is lost.\nHint: {hint}"
    )


def warn_of_dropped_masters(names: Sequence[str], load: str) -> None:
    """Warn of masters that a state brought before there were any, by the method ``load``."""
    warn(
        "The state that was loaded into the optimizer has float32 masters of other weights than the "
        f"model's, which are dropped: {first_of(names)}.\n"
        f"Hint: amp.decorate(model, optimizer, policy); then model.{load}(weights), and "
        f"optimizer.{load}(state) after it; or nothing, if the weights were trained since."
    )


def cast_since(name: str, dtype: object, before: object) -> str:
    """What is said of a parameter that is in ``dtype``, by nobody's decoration."""
    return (
        f"{name!r} is in {dtype}, and was in {before} when the model was decorated: somebody has cast the "
        "model since."
    )


def warn_if_nothing_is_low(policy: Policy, low: Sequence[object]) -> None:
    """Warn of masters or slots that are chosen for a model in which no parameter is ``low``."""
    usual = policy.replace(masters="float32", slots="float32")
    if policy != usual and not low:
        warn(
            f"{policy!r} puts no parameter of the model into 16 bits, so that masters and slots say "
            "nothing.\nHint: keep fewer layers in float32, and make the others without a precision of their "
            f"own; or {usual!r}"
        )


def not_decorated_with(optimizer: object, policy: Policy) -> CallOrderError:
    """The error for an optimizer that steps low parameters of a model with which nobody decorated it."""
    kind = type(optimizer)
    does = (
        "update their 16-bit values and not their float32 masters"
        if (policy.masters, policy.slots) == ("float32", "float32")
        else f"not update and keep them as {policy!r} says"
    )
    return CallOrderError(
        f"The optimizer ({kind.__module__}.{kind.__qualname__}) trains parameters of a model at O2 "
        f"with which it was not decorated: it would {does}.\n"
        "Hint: amp.decorate(model, optimizer, policy) once it is made; or amp.decorate(model, "
        "[optimizer, another], policy)."
    )


def no_moments(policy: Policy, optimizer: object) -> ArgumentError:
    """The error for low slots of an optimizer that has none."""
    return ArgumentError(
        f"slots={policy.slots!r} of {type(optimizer).__name__}, which keeps no moments: nothing would be in "
        f"16 bits.\nHint: {policy.replace(slots='float32')!r}"
    )
