"""How far two arrays are apart, and whether one is the other with its axes in another order.

error     max |a - b| over the largest magnitude of both
rounding  epsilon of the dtype, and float16's smallest number over the largest magnitude
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

NumpyArray = npt.NDArray[Any]

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The distance from 1 to the next number."""

SMALLEST = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
"""The smallest number above zero: nothing is nearer to an exact value than half of it."""

MOST_AXES = 5
"""With more axes only exchanges of two are tried."""


def rounded(values: NumpyArray, dtype: str) -> NumpyArray:
    """Round float32 or float64 values to ``dtype``, and keep them in their own dtype."""
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return np.asarray(values.astype(np.float16), values.dtype)
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        kept = np.where(np.isnan(values), bits, even) & np.uint32(0xFFFF0000)
        return np.asarray(kept.astype(np.uint32).view(np.float32), values.dtype)
    return values


def largest(values: NumpyArray) -> float:
    """The largest finite magnitude; 0.0 if there is none."""
    magnitudes = np.abs(values)
    return float(np.max(magnitudes, initial=0.0, where=np.isfinite(magnitudes)))


def root_mean_square(values: NumpyArray) -> float:
    """The root mean square in float64; 0.0 of an empty array."""
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if values.size else 0.0


def apart(a: NumpyArray, b: NumpyArray) -> float:
    """The largest difference of two arrays of one shape over their largest magnitude.

    Infinite if one is infinite or NaN where the other is not, or is not the same infinity.
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    differing = ~same
    if not differing.any():
        return 0.0
    difference = np.abs(a[differing] - b[differing])
    if not np.isfinite(difference).all():
        return float("inf")
    return float(difference.max()) / max(largest(a), largest(b))


def rounding(values: NumpyArray, dtype: str, scale: float = 1.0) -> float:
    """The relative error of the largest value that a rounding to ``dtype`` may make.

    ``scale``: what the values were multiplied by when they were rounded, as gradients are.
    """
    most = largest(values) * scale
    return EPSILON[dtype] + (min(SMALLEST[dtype] / most, 1.0) if most else 0.0)


class Arrangement(NamedTuple):
    """How ``b`` is made of the values of ``a``.

    Attributes:
        axes: the order of the axes; None if the values are in the same order, whatever the shapes.
        of: the shape of ``a`` before its axes are put in that order.
    """

    axes: tuple[int, ...] | None = None
    of: tuple[int, ...] = ()

    @property
    def moves_channels(self) -> bool:
        """Whether it is channels first against channels last, and nothing else."""
        return self.axes in _channel_moves(len(self.axes or ()))

    def __str__(self) -> str:
        if self.axes is None:
            return "equal"
        moved = [i for i, axis in enumerate(self.axes) if i != axis]
        if len(moved) == 2:
            return f"equal after transposing axes {moved[0]} and {moved[1]}"
        return f"equal after transposing to axes {self.axes}"


AS_IT_IS = Arrangement()


def arranged(a: NumpyArray, like: NumpyArray, arrangement: Arrangement) -> NumpyArray | None:
    """``a`` in the shape of ``like``; None if it has another number of elements."""
    if a.size != like.size or a.size != np.prod(arrangement.of or a.shape):
        return None
    if arrangement.axes is not None:
        a = np.transpose(a.reshape(arrangement.of), arrangement.axes)
    return a.reshape(like.shape)


def error(a: NumpyArray, b: NumpyArray, arrangement: Arrangement = AS_IT_IS) -> float:
    """How far ``a`` in an arrangement is from ``b``; infinite if their sizes differ."""
    turned = arranged(a, b, arrangement)
    return float("inf") if turned is None else apart(turned, b)


def arrangement_of(a: NumpyArray, b: NumpyArray, limit: float) -> Arrangement | None:
    """The first arrangement in which ``a`` is ``b`` up to an error of ``limit``; None if there is none.

    It tries the arrays as they are, then channels first against channels last, then all others.
    """
    return next((each for each in _arrangements(a, b) if error(a, b, each) <= limit), None)


def is_reordered(a: NumpyArray, b: NumpyArray, limit: float) -> bool:
    """Whether two arrays have the same values in another order."""
    return a.size == b.size > 1 and apart(np.sort(a, axis=None), np.sort(b, axis=None)) <= limit


def nearest(a: NumpyArray, b: NumpyArray) -> float:
    """The smallest error of the arrays as they are, and with the channels moved."""
    moves = [Arrangement(axes, a.shape) for axes in _channel_moves(a.ndim)]
    turned = [each for each in moves if a.ndim == b.ndim and _turned(each) == b.shape]
    return min(error(a, b, each) for each in (AS_IT_IS, *turned))


def _arrangements(a: NumpyArray, b: NumpyArray) -> Iterator[Arrangement]:
    """All arrangements that fit the shapes. If ``a`` has fewer axes, some of them are merged."""
    yield AS_IT_IS
    if a.size != b.size:
        return
    if a.ndim == b.ndim:
        for axes in _orders(a.ndim):
            if _turned(each := Arrangement(axes, a.shape)) == b.shape:
                yield each
    elif a.ndim < b.ndim:
        for axes in _orders(b.ndim):  # a is b with axes merged, after they were exchanged
            inverse = tuple(int(axis) for axis in np.argsort(axes))
            yield Arrangement(axes, tuple(b.shape[axis] for axis in inverse))
    else:
        for axes in _orders(a.ndim):
            yield Arrangement(axes, a.shape)


def _turned(arrangement: Arrangement) -> tuple[int, ...]:
    return tuple(arrangement.of[axis] for axis in arrangement.axes or ())


def _orders(ndim: int) -> dict[tuple[int, ...], None]:
    """Other orders of the axes: channels moved, then exchanges of two, which are the usual mistake."""
    usual = tuple(range(ndim))
    found = dict.fromkeys(_channel_moves(ndim))
    for i, j in combinations(usual, 2):
        axes = [*usual]
        axes[i], axes[j] = j, i
        found[tuple(axes)] = None
    if ndim <= MOST_AXES:
        found |= dict.fromkeys(permutations(usual))
    found.pop(usual, None)
    return found


def _channel_moves(ndim: int) -> tuple[tuple[int, ...], ...]:
    """The orders of axes that move the channels to the end, and to the front."""
    if ndim < 3:
        return ()
    return (0, *range(2, ndim), 1), (0, ndim - 1, *range(1, ndim - 1))
