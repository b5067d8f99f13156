"""Arrays that hold 16-bit numbers between two steps, and those whose slots do: ``masters`` and ``slots``.

They are found by their identity after a step of any of our optimizers, also of one that nobody decorated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from ampbridge.adapters.calling_code import warn
from ampbridge.adapters.low_storage import (
    are_bfloat16,
    is_moment,
    no_moments,
    rounded_by_chance,
    warn_of_rounded_slots,
    warn_of_rounded_weights,
)
from ampbridge.policies.policy import Policy
from ampbridge_numpy.autocast.casting import cast

Optimizer = Any

_by_id: WeakValueDictionary[int, LowArrays] = WeakValueDictionary()


class LowArrays:
    """Those of one decorated model, which holds this, as this holds the arrays."""

    def __init__(self, arrays: Sequence[np.ndarray], policy: Policy) -> None:
        self._arrays, self._policy = arrays, policy
        self._looked_at: WeakSet[Any] = (
            WeakSet()
        )  # optimizers of which it is known whether they have slots
        _by_id.update(dict.fromkeys(map(id, arrays), self))
        self.to_nearest()

    def __reduce__(self) -> tuple[Any, ...]:
        return LowArrays, (self._arrays, self._policy)  # the arrays of a copy are others

    def release(self) -> None:
        """Let the arrays be float32 from now on."""
        for array in self._arrays:
            _by_id.pop(id(array), None)

    def to_nearest(self) -> None:
        """Round the arrays themselves, if they are to be low."""
        if self._policy.variable_dtype != "float32":
            _round(self._arrays, self._policy.dtype)

    def slots_of(self, optimizer: Optimizer) -> list[np.ndarray]:
        """The moments of the arrays, if these are to be low."""
        if self._policy.slots == "float32":
            return []
        low = set(map(id, self._arrays))
        return [
            slot
            for parameter, state in zip(optimizer.parameters, optimizer.state, strict=True)
            for slot in state.values()
            if id(parameter) in low and is_moment(slot, parameter)
        ]

    def tell_of_slots(self, optimizer: Optimizer) -> None:
        """Warn of moments that are to be low, and whose further digits will be lost."""
        if _are_rounded_by(self.slots_of(optimizer), "bfloat16"):
            warn_of_rounded_slots(self._policy, self._policy.slots)

    def slots_to_nearest(self, optimizer: Optimizer) -> None:
        """Round the moments that are to be low."""
        _round(self.slots_of(optimizer), "bfloat16")

    def before_step(self, optimizer: Optimizer) -> None:
        """Warn of float32 values that somebody has put into the arrays or the moments since the last step."""
        policy = self._policy
        if policy.variable_dtype != "float32" and _are_rounded_by(self._arrays, policy.dtype):
            hint = policy.replace(masters="float32")
            warn_of_rounded_weights(policy, "written in float32", repr(hint))
        self.tell_of_slots(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """Round slots by chance, and arrays where the policy is "stochastic".

        The optimizer's count of such updates seeds the draws. Its first step warns if it makes no slots,
        where these are to be low.
        """
        if self._policy.masters is None:
            self.to_nearest()
        slots = self.slots_of(optimizer)
        if self._policy.slots != "float32" and optimizer not in self._looked_at:
            self._looked_at.add(optimizer)
            if not slots:
                warn(str(no_moments(self._policy, optimizer)))
        by_chance = [*(self._arrays if self._policy.masters == "stochastic" else ()), *slots]
        if not by_chance:
            return
        optimizer.rounded_by_chance += 1
        generator = np.random.default_rng(optimizer.rounded_by_chance)
        for array in by_chance:
            if array.dtype == np.float32:
                draws = generator.integers(0, 0x10000, array.shape, np.int32)
                bits = rounded_by_chance(array.view(np.int32), draws, np.where)
                array[...] = bits.view(np.float32)


def among(arrays: Iterable[np.ndarray]) -> list[LowArrays]:
    """Those of the models that ``arrays`` belong to, each once."""
    found = (_by_id.get(id(array)) for array in arrays)
    return list({id(low): low for low in found if low is not None}.values())


def _are_rounded_by(arrays: Sequence[np.ndarray], dtype: str) -> bool:
    """Whether any number would change; NaN does not. As a rule none would, as its bits show."""
    return any(
        not (dtype == "bfloat16" and x.dtype == np.float32 and are_bfloat16(x))
        and not np.array_equal(x, cast(x, dtype), equal_nan=True)
        for x in arrays
    )


def _round(arrays: Sequence[np.ndarray], dtype: str) -> None:
    for array in arrays:
        array[...] = cast(array, dtype)
