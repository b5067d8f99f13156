"""Models that are values, such as Equinox's: a module of nnx holds their arrays, which a step changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class Stateful(nnx.Module):
    """A module of nnx made of a pytree of arrays: a model of Equinox, the params of linen or Haiku.

        model = Stateful(eqx.nn.MLP(4, 1, 16, 2, key=key))
        model = Stateful(params, lambda params, x: net.apply({"params": params}, x))

    The floating-point arrays, NumPy's too, become parameters, named by their paths; nothing else of the
    tree changes.

    Args:
        tree: the pytree. It stays as it is.
        apply: is called with the present tree and the arguments of a call; by default the tree itself
            is called.
    """

    def __init__(self, tree: Any, apply: Callable[..., Any] | None = None) -> None:
        structure: Any
        found, structure = jax.tree_util.tree_flatten_with_path(tree)
        spell = jax.tree_util.keystr
        names = [spell(path, simple=True, separator=".") for path, _ in found]
        if len(set(names)) < len(names):  # {"a": {"b": x}, "a.b": y}
            names = [spell(path) for path, _ in found]
        leaves = {
            name: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf
            for name, (_, leaf) in zip(names, found, strict=True)
        }
        arrays = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, jax.Array)}
        others = tuple((name, leaf) for name, leaf in leaves.items() if name not in arrays)
        self.arrays = nnx.data({name: _variable(array) for name, array in arrays.items()})
        self._static = structure, tuple(leaves), others, apply

    @property
    def tree(self) -> Any:
        """The pytree with the present values of the arrays."""
        structure, names, others, _ = self._static
        held = {**dict(others), **{name: v[...] for name, v in self.arrays.items()}}
        return structure.unflatten([held[name] for name in names])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        apply = self._static[-1]
        return self.tree(*args, **kwargs) if apply is None else apply(self.tree, *args, **kwargs)


def _variable(array: jax.Array) -> nnx.Variable[Any]:
    is_trained = jnp.issubdtype(array.dtype, jnp.inexact)
    return nnx.Param(array) if is_trained else nnx.Variable(array)
