"""Numbers that stay on the device until somebody asks: many of them in one array.

To return an array from a jitted function takes the host longer than the device takes for a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Number:
    """A number whose bits are in an array of int32, from ``place`` on."""

    __slots__ = ("_array", "_place", "dtype")

    shape, ndim, size = (), 0, 1

    def __init__(self, array: jax.Array, place: int, dtype: np.dtype[Any]) -> None:
        self._array, self._place, self.dtype = array, place, dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        words = _words(self.dtype)
        bits = np.asarray(self._array)[self._place : self._place + words]
        return np.array(bits.view(self.dtype)[0], dtype)

    def __float__(self) -> float:
        return float(self.__array__())

    def __int__(self) -> int:
        return int(self.__array__())

    def __bool__(self) -> bool:
        return bool(self.__array__())

    __index__ = __int__

    def __repr__(self) -> str:
        return f"Number({self.__array__()})"


def _words(dtype: Any) -> int:
    return int(dtype.itemsize) // 4


def wide(number: Any) -> jax.Array:
    """A number in 32 bits at least."""
    number = jnp.asarray(number)
    least = jnp.float32 if jnp.issubdtype(number.dtype, jnp.floating) else jnp.int32
    widened: jax.Array = number.astype(jnp.promote_types(number.dtype, least))
    return widened


def packed(numbers: Sequence[jax.Array]) -> jax.Array:
    """The bits of ``numbers``, which are ``wide``, in one array."""
    return jnp.concatenate([lax.bitcast_convert_type(x, jnp.int32).reshape(-1) for x in numbers])


def places(numbers: Sequence[jax.Array]) -> list[tuple[int, np.dtype[Any]]]:
    """Where ``packed`` puts each, and its dtype."""
    found, place = [], 0
    for x in numbers:
        found.append((place, np.dtype(x.dtype)))
        place += _words(x.dtype)
    return found
