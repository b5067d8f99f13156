"""Conversions between float32 and float16 in a fraction of the time that NumPy's own take.

NumPy converts number by number where the CPU's instructions for it are not used. Here a few passes of
its vectorized arithmetic do, with the same bits:

    anchor(x)   1.5 * 2**13 times the power of two at or below |x|, which is 2**-14 at least
    x rounded   (x + anchor) - anchor: the sum keeps the bits that float16 has, rounded to even

Numbers from 2**15 on, inf and NaN are left to NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampbridge.adapters.interrupts import LAST_OF_SEVERAL

Array = np.ndarray[Any, Any]

_HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
"""Each float16 in float32, by its bits."""

_EXPONENT = np.uint32(0x7F800000)
_LEAST_NORMAL = np.float32(2.0**-14)
_BEYOND = np.float32(2.0**15).view(np.uint32)
_DROPS_13_BITS = np.float32(1.5 * 2**13)
_TO_THE_EXPONENTS_OF_HALVES = np.float32(2.0**-112)
# Up to so many numbers, NumPy's own conversion, number by number, is faster.
_FEW_TO_CONVERT, _FEW_TO_ROUND = 4096, 1024


def halves(x: Array) -> Array:
    """``x.astype(float16)``, of a float32 array; inf beyond the largest float16."""
    rounded = _rounded(x) if x.size > _FEW_TO_CONVERT else None
    if rounded is None:
        with np.errstate(over="ignore"), LAST_OF_SEVERAL:
            return x.astype(np.float16)
    signs = x.view(np.uint32) >> np.uint32(16)
    signs &= np.uint32(0x8000)
    bits = rounded.view(np.uint32)
    np.abs(rounded, out=rounded)
    rounded *= _TO_THE_EXPONENTS_OF_HALVES  # exact
    bits >>= np.uint32(13)
    bits |= signs
    return bits.astype(np.uint16).view(np.float16)


def widened(x: Array) -> Array:
    """``x.astype(float32)``, of a float16 array."""
    if not x.flags.c_contiguous:  # the result would lie otherwise in memory
        return x.astype(np.float32)
    return _HALVES.take(x.view(np.uint16), mode="wrap")


def rounded_to_halves(x: Array) -> Array:
    """``x.astype(float16).astype(float32)``, of a float32 array."""
    rounded = _rounded(x) if x.size > _FEW_TO_ROUND else None
    return widened(halves(x)) if rounded is None else np.copysign(rounded, x, out=rounded)


def _rounded(x: Array) -> Array | None:
    """Round to the numbers of float16, stored in float32; a zero may have the other sign.

    None if an ``x`` is so large that NumPy has to convert it.
    """
    anchor = np.bitwise_and(x.view(np.uint32), _EXPONENT)
    if anchor.max() >= _BEYOND:
        return None
    anchors: Array = anchor.view(np.float32)
    np.maximum(anchors, _LEAST_NORMAL, out=anchors)
    anchors *= _DROPS_13_BITS
    rounded: Array = x + anchors
    rounded -= anchors
    return rounded
