"""Training in JAX, by a jitted loop of optax on a tree of arrays, as users of JAX write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from zoo import Framework, Run, Specimen, described, overflowing_at_first

from ampbridge_jax import Stateful

RATE = 3e-3


@dataclass(frozen=True)
class Tree:
    """A model that is a value: of Equinox, or the parameters of linen, Haiku and others.

    ``apply(tree, *args, **named)`` is its call.
    """

    tree: Any
    apply: Callable[..., Any]

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.apply(self.tree, *args, **named)


class Jax(Framework):
    """See ``zoo.Framework``. JAX has no mixed precision of its own: what is low is rounded by hand."""

    steps = 30
    compiled = True
    scaling: ClassVar = overflowing_at_first(backoff_factor=2.0**-6)

    def seed(self, number: int) -> None:
        """Random numbers are part of a model here."""

    def model(self, specimen: Specimen) -> nnx.Module:
        built = specimen.build()
        return Stateful(built.tree, built.apply) if isinstance(built, Tree) else built

    def optimizer(self, _: Specimen, model: nnx.Module) -> nnx.Optimizer[Any]:
        return nnx.Optimizer(model, optax.adam(RATE), wrt=nnx.Param)

    def weights(self, model: Any) -> dict[str, np.ndarray]:
        return named(
            model.tree
            if isinstance(model, Stateful)
            else nnx.to_pure_dict(nnx.state(model, nnx.Not(nnx.RngState)))
        )

    def trained(self, model: nnx.Module, optimizer: nnx.Optimizer[Any]) -> list[bytes]:
        leaves = jax.tree.leaves((nnx.state(model, nnx.Param), nnx.state(optimizer)))
        return [np.asarray(leaf).tobytes() for leaf in leaves]

    def anatomy(self, model: nnx.Module, optimizer: nnx.Optimizer[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"optimizer": described(optimizer)}
        for path, node in nnx.iter_graph(model):
            if isinstance(node, nnx.Variable):
                found[str(path)] = type(node), node[...].dtype, dict(node.get_metadata())
            elif isinstance(node, nnx.Module):
                found[str(path)] = described(node)
        return found

    def train(self, specimen: Specimen, dtype: str) -> Run:
        """In ``dtype`` the weights and the batches alone are rounded to it; all is computed in float32."""
        built = specimen.build()
        static, trained, rest = divided(built)
        tx = optax.adam(RATE)

        def rounded(tree: Any) -> Any:
            if dtype == "float32":
                return tree
            return jax.tree.map(
                lambda x: x.astype(dtype).astype(x.dtype) if x.dtype == jnp.float32 else x, tree
            )

        def loss_of(trained: Any, rest: Any, batch: Any) -> Any:
            model = static(rounded(trained), rest)
            return specimen.loss(model, *rounded(batch)), divided(model)[2]

        @jax.jit
        def step(trained: Any, slots: Any, rest: Any, *batch: Any) -> Any:
            (loss, rest), grads = jax.value_and_grad(loss_of, has_aux=True)(trained, rest, batch)
            updates, slots = tx.update(grads, slots, trained)
            return loss, optax.apply_updates(trained, updates), slots, rest

        slots, losses = tx.init(trained), []
        for batch in specimen.batches(self.steps):
            loss, trained, slots, rest = step(trained, slots, rest, *map(jnp.asarray, batch))
            losses.append(float(loss))
        model = static(trained, rest)
        held = named(model.tree) if isinstance(model, Tree) else self.weights(model)
        return Run(losses, [1.0] * self.steps, held)


def divided(model: Any) -> tuple[Callable[[Any, Any], Any], Any, Any]:
    """A function that makes the model of the two others: what is trained, and what else it holds."""
    if not isinstance(model, Tree):
        graph, trained, rest = nnx.split(model, nnx.Param, ...)
        return lambda trained, rest: nnx.merge(graph, trained, rest, copy=True), trained, rest
    leaves, structure = jax.tree.flatten(model.tree)
    is_trained = [
        isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves
    ]
    fixed = [None if each else leaf for each, leaf in zip(is_trained, leaves, strict=True)]

    def whole(trained: Any, _: Any) -> Tree:
        values = iter(trained)
        merged = [
            next(values) if each else leaf for each, leaf in zip(is_trained, fixed, strict=True)
        ]
        return Tree(jax.tree.unflatten(structure, merged), model.apply)

    trained = [leaf for each, leaf in zip(is_trained, leaves, strict=True) if each]
    return whole, trained, []


def named(tree: Any) -> Mapping[str, np.ndarray]:
    """Copies of the arrays of a tree, by their paths."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path): np.array(leaf)
        for path, leaf in found
        if isinstance(leaf, jax.Array)
    }
