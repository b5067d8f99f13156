"""What the framework's objects are, and how a user makes them."""

from __future__ import annotations

from flax import nnx

from ampbridge.adapters.backend import Kind
from ampbridge_jax.model import keras_models

EXAMPLES = {
    "model": (
        "model = nnx.Linear(4, 2, rngs=nnx.Rngs(0))  # of Equinox, linen, ...: ampbridge_jax.Stateful"
    ),
    "optimizer": "optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)",
    "float32 model": "model = nnx.Linear(4, 2, param_dtype=jnp.float32, rngs=nnx.Rngs(0))",
    "loss_fn": "def loss_fn(model, x, y): return optax.l2_loss(model(x), y).mean()",
}


def kind(obj: object) -> Kind | None:
    """See ``Backend.kind``. The losses and the schedules of optax are functions."""
    found = keras_models.kind(obj)
    if found is not None:
        return found
    if isinstance(obj, nnx.Optimizer):
        return "optimizer"
    return "model" if isinstance(obj, nnx.Module) else None
