"""The arrays in batches and outputs: NumPy's and JAX's, in containers and in the pytrees of JAX's users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampbridge.adapters.backend import Array
from ampbridge.adapters.nested import leaves, map_leaves


def native_array(x: Any) -> Any:
    """An array of NumPy as JAX's. NumPy makes float64 unasked: it becomes float32."""
    if isinstance(x, (np.ndarray, np.generic)):
        return jnp.asarray(x, jnp.float32 if x.dtype == np.float64 else None)
    return x


def is_array(x: Any) -> bool:
    """Whether JAX computes with ``x``, traced or not."""
    return isinstance(x, (jax.Array, np.ndarray, np.generic))


def arrays_in(tree: Any) -> list[Array]:
    """The arrays of ``tree``; an ``nnx.State`` or another pytree of JAX is a container as lists are."""
    return [x for each in leaves(tree) for x in jax.tree.leaves(each) if is_array(x)]


def with_arrays(
    tree: Any, arrays: Sequence[Any], is_place: Callable[[Any], bool] = is_array
) -> Any:
    """``tree`` with ``arrays`` in its places, by default those of ``arrays_in``."""
    remaining = iter(arrays)

    def exchanged(leaf: Any) -> Any:
        return jax.tree.map(lambda x: next(remaining) if is_place(x) else x, leaf)

    return map_leaves(exchanged, tree)
