"""What the framework's objects are, and how a user makes them."""

from __future__ import annotations

from collections.abc import Mapping

from flax import nnx

from ampbridge.adapters.backend import Kind
from ampbridge_jax.model.kinds import FLAX, keras


def examples(_: object) -> Mapping[str, str]:
    """See ``Backend.examples``. The core does not say of which model: Keras' too, where it runs on JAX."""
    of_keras = keras()
    if of_keras is None:
        return FLAX.examples
    return {
        role: f"{code}; of Keras: {of_keras.KERAS.examples[role]}"
        for role, code in FLAX.examples.items()
    }


def kind(obj: object) -> Kind | None:
    """See ``Backend.kind``. The losses and the schedules of optax are functions."""
    of_keras = keras()
    found: Kind | None = None if of_keras is None else of_keras.kind(obj)
    if found is not None:
        return found
    if isinstance(obj, nnx.Optimizer):
        return "optimizer"
    return "model" if isinstance(obj, nnx.Module) else None
