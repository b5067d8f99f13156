"""The small arrays of a step in one: to pass an array takes the host longer than to copy a small one.

Nobody else has that one, and it goes into a step only where the Variables hold the very arrays of which
it was made.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import compress
from math import prod
from operator import is_
from typing import Any

import jax
import numpy as np
from jax import lax

from ampbridge.adapters.backend import Array
from ampbridge_jax._private import fill_all, values_of
from ampbridge_jax.step.arrays import is_array
from ampbridge_jax.step.numbers import packed
from ampbridge_jax.step.placing import may_be_spread

LARGEST = 4096
"""How many numbers a small array has at most."""

Arguments = tuple["Array | None", Sequence[Any]]
"""The small arrays in one, and the others."""


class Packing:
    """Which of some arrays are small, and their shapes and dtypes.

    Attributes:
        key: equal to that of another packing that does the same.
    """

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._forms = [*map(_form, arrays)]
        self._is_small = [form is not None for form in self._forms]
        self._is_other = [form is None for form in self._forms]
        self._is_whole = all(self._is_small)
        self.key: Hashable = tuple(self._forms)

    def split(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The small arrays, and the others."""
        if self._is_whole:
            return arrays, ()
        return [*compress(arrays, self._is_small)], [*compress(arrays, self._is_other)]

    def joined(self, one: Array | None, others: Sequence[Any]) -> list[Any]:
        """What was split; the small arrays are in ``one``."""
        found, place, remaining = [], 0, iter(others)
        for form in self._forms:
            if form is None or one is None:
                found.append(next(remaining))
            else:
                shape, dtype = form
                end = place + prod(shape)
                bits = one[place:end].reshape(shape)
                found.append(lax.bitcast_convert_type(bits, dtype))
                place = end
        return found

    def packed(self, arrays: Sequence[Array]) -> Array | None:
        """The bits of the small ones of ``arrays``; None if there are none, or they are packed otherwise."""
        small, _ = self.split(arrays)
        return packed(small) if small and Packing(arrays).key == self.key else None


def _form(x: Any) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """The shape and the dtype of a small array; None of all else, as of numbers of Python."""
    if not is_array(x) or x.size > LARGEST or getattr(x, "weak_type", False):
        return None
    if not isinstance(x.dtype, np.dtype):
        return None  # a key of a random generator
    dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    return (x.shape, dtype) if dtype.kind in "iuf" and dtype.itemsize == 4 else None


_packed = jax.jit(packed)


class Held:
    """What Variables hold, as arguments of a step that gives them other values.

    Attributes:
        packing: how they are passed; another object if they have changed since the last step.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = variables
        self.packing = Packing(())
        self._packs = not may_be_spread()  # XLA lays out each array by itself
        self._known: tuple[Sequence[Any], Array | None] | None = None

    def arguments(self) -> Arguments:
        """The small arrays in one, and the others."""
        values = values_of(self.variables)
        if self._known is not None:
            before, one = self._known
            small, others = self.packing.split(values)
            if all(map(is_, small, before)):
                return one, others
        self.packing = Packing(values if self._packs else [None] * len(values))
        small, others = self.packing.split(values)
        one = _packed(small) if small else None
        self._known = small, one
        return one, others

    def put(self, values: Sequence[Any], one: Array | None) -> None:
        """Give the Variables what a step returned; ``one`` is what its ``Packing.packed`` made."""
        fill_all(self.variables, values)
        small, _ = self.packing.split(values)
        self._known = None if small and one is None else (small, one)
