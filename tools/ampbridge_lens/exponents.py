"""A histogram of binary exponents, which shows how values fit into float16.

Multiplying by a power of two, such as a loss scale, shifts every exponent and does not change the
digits. So one histogram serves for every loss scale. Two limits of float16 are not powers of two:
values round to infinity from 65520 on, just below 2**16, and 2**-25 itself still rounds to zero. So
each bin also counts the values in its topmost part and on its lower edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

SMALLEST_NORMAL = -14
"""float16's normal numbers begin at 2**-14, ..."""
SMALLEST = -24
"""... its subnormal ones at 2**-24; half of that and less rounds to zero ..."""
LARGEST = 15
"""... and its largest number lies in [2**15, 2**16)."""
_ROUNDS_UP = 65520 / 2.0**15
"""From this many times 2**15 on, values round to infinity (IEEE 754, ties to even)."""

# float32: a number's bits are its exponent plus _BIAS, and its digits behind the leading one.
_DIGITS, _BIAS, _NOT_FINITE = 23, 127, 255
_TOP_DIGITS = int((_ROUNDS_UP - 1) * 2**_DIGITS)


class Bin(NamedTuple):
    """Values of one binary exponent.

    Attributes:
        values: |x| in [2**e, 2**(e + 1)).
        top: of those, at or above 65520/65536 of the upper edge.
        edge: of those, exactly 2**e.
    """

    values: int
    top: int
    edge: int


@dataclass(frozen=True)
class Exponents:
    """A histogram of magnitudes by binary exponent. Zeros, infinities and NaN are counted separately.

    Attributes:
        bins: exponent -> ``Bin``, of finite values other than zero, ascending.
        largest: the largest finite |x|; 0.0 if there is none.
    """

    bins: Mapping[int, Bin] = field(default_factory=dict)
    zeros: int = 0
    infinities: int = 0
    nans: int = 0
    largest: float = 0.0

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Exponents:
        """The histogram of a float32 or float64 array."""
        flat = np.abs(values).reshape(-1)
        if flat.dtype != np.float32:
            return cls._of_magnitudes(flat)
        bits = flat.view(np.int32)
        exponents, digits = bits >> _DIGITS, bits & ((1 << _DIGITS) - 1)
        counted = np.bincount(exponents, minlength=_NOT_FINITE + 1)
        top = np.bincount(exponents[digits >= _TOP_DIGITS], minlength=_NOT_FINITE + 1)
        edge = np.bincount(exponents[digits == 0], minlength=_NOT_FINITE + 1)
        normal = {
            int(e) - _BIAS: Bin(int(counted[e]), int(top[e]), int(edge[e]))
            for e in np.flatnonzero(counted[1:_NOT_FINITE]) + 1
        }
        small = cls._of_magnitudes(flat[exponents == 0]) if counted[0] > edge[0] else cls()
        finite = bits if not counted[_NOT_FINITE] else bits[exponents < _NOT_FINITE]
        return cls(
            {**small.bins, **normal},
            zeros=int(edge[0]),
            infinities=int(edge[_NOT_FINITE]),
            nans=int(counted[_NOT_FINITE] - edge[_NOT_FINITE]),
            largest=float(finite.max(initial=0).astype(np.int32).view(np.float32)),
        )

    @classmethod
    def _of_magnitudes(cls, flat: npt.NDArray[Any]) -> Exponents:
        """The histogram of values that have no sign, in any dtype; slower than by the bits."""
        finite = flat[np.isfinite(flat)]
        digits, upper = np.frexp(finite[finite > 0])  # digits in [1/2, 1)
        exponents = upper - 1
        counted = _counts(exponents)
        top = _counts(exponents[digits >= _ROUNDS_UP / 2])
        edge = _counts(exponents[digits == 0.5])
        bins = {e: Bin(n, top.get(e, 0), edge.get(e, 0)) for e, n in counted.items()}
        return cls(
            bins,
            zeros=int(np.sum(finite == 0)),
            infinities=int(np.sum(np.isinf(flat))),
            nans=int(np.sum(np.isnan(flat))),
            largest=float(finite.max(initial=0.0)),
        )

    @classmethod
    def merged(cls, parts: Iterable[Exponents]) -> Exponents:
        """The histogram of all parts together."""
        found = list(parts)
        exponents = sorted({exponent for part in found for exponent in part.bins})
        nothing = Bin(0, 0, 0)
        return cls(
            {
                exponent: Bin(
                    *map(sum, zip(*(p.bins.get(exponent, nothing) for p in found), strict=True))
                )
                for exponent in exponents
            },
            zeros=sum(part.zeros for part in found),
            infinities=sum(part.infinities for part in found),
            nans=sum(part.nans for part in found),
            largest=max((part.largest for part in found), default=0.0),
        )

    def shifted(self, powers: int) -> Exponents:
        """The histogram of the values times ``2**powers``, without rounding in their own dtype."""
        return Exponents(
            {exponent + powers: counted for exponent, counted in self.bins.items()},
            self.zeros,
            self.infinities,
            self.nans,
            float(np.ldexp(self.largest, powers)),
        )

    # -- as float16 would have them

    @property
    def total(self) -> int:
        """The number of values."""
        return sum(b.values for b in self.bins.values()) + self.zeros + self.infinities + self.nans

    @property
    def overflowing(self) -> float:
        """The fraction that is infinite, or would be in float16."""
        above = sum(b.values for exponent, b in self.bins.items() if exponent > LARGEST)
        at_border = self.bins[LARGEST].top if LARGEST in self.bins else 0
        return self._fraction(above + at_border + self.infinities)

    @property
    def flushed(self) -> float:
        """The fraction that is not zero, and would be in float16."""
        return self._fraction(self._flushed)

    @property
    def subnormal(self) -> float:
        """The fraction below 2**-14 that float16 keeps, with fewer digits than it has elsewhere."""
        small = sum(b.values for exponent, b in self.bins.items() if exponent < SMALLEST_NORMAL)
        return self._fraction(small - self._flushed)

    @property
    def headroom(self) -> int | None:
        """How often the largest value may be doubled and stay finite in float16.

        Negative where it does not fit; None where nothing is finite and other than zero.
        """
        if not self.bins:
            return None
        exponent = max(self.bins)
        rounds_up = self.bins[exponent].top > 0
        return LARGEST - exponent - int(rounds_up)

    @property
    def _flushed(self) -> int:
        half = SMALLEST - 1
        below = sum(b.values for exponent, b in self.bins.items() if exponent < half)
        return below + (self.bins[half].edge if half in self.bins else 0)

    def _fraction(self, count: int) -> float:
        return count / self.total if self.total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: counts by exponent, and what follows from them."""
        return {
            "exponents": {str(exponent): b.values for exponent, b in self.bins.items()},
            "zeros": self.zeros,
            "infinities": self.infinities,
            "nans": self.nans,
            "total": self.total,
            "largest": self.largest,
            "overflowing": self.overflowing,
            "flushed": self.flushed,
            "subnormal": self.subnormal,
            "headroom": self.headroom,
        }


def _counts(exponents: npt.NDArray[np.int32]) -> dict[int, int]:
    """How often each exponent is there, ascending; in one pass, as a lens looks at every array."""
    if not exponents.size:
        return {}
    lowest = int(exponents.min())
    found = np.bincount(exponents - lowest)
    return {lowest + int(i): int(found[i]) for i in np.flatnonzero(found)}
