"""What the framework's objects are, and how a user makes them."""

from __future__ import annotations

from flax import nnx

from ampbridge.adapters.backend import Kind
from ampbridge_jax.model.kinds import FLAX, keras


class _Examples(dict[str, str]):
    """Code for hints of the core, which do not say of which model: Keras' as well, where it runs on JAX."""

    def __getitem__(self, role: str) -> str:
        own, of_keras = super().__getitem__(role), keras()
        return own if of_keras is None else f"{own}; of Keras: {of_keras.KERAS.examples[role]}"


EXAMPLES = _Examples(FLAX.examples)


def kind(obj: object) -> Kind | None:
    """See ``Backend.kind``. The losses and the schedules of optax are functions."""
    of_keras = keras()
    found: Kind | None = None if of_keras is None else of_keras.kind(obj)
    if found is not None:
        return found
    if isinstance(obj, nnx.Optimizer):
        return "optimizer"
    return "model" if isinstance(obj, nnx.Module) else None
