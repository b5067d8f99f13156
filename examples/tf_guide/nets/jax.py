"""The classifier in JAX, of modules of flax nnx."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx


class Predictions(nnx.Module):
    """A module, so that it can be kept in float32."""

    def __call__(self, logits: jax.Array) -> jax.Array:
        return jax.nn.softmax(logits)


class Classifier(nnx.Module):
    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self.dense_1 = linear(weights["dense_1"])
        self.dense_2 = linear(weights["dense_2"])
        self.dense_logits = linear(weights["dense_logits"])
        self.predictions = Predictions()

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.dense_2(nnx.relu(self.dense_1(x))))
        return self.predictions(self.dense_logits(x))


classifier = Classifier


def linear(weight: np.ndarray) -> nnx.Linear:
    layer = nnx.Linear(*weight.shape, rngs=nnx.Rngs(0))  # its bias is zero
    layer.kernel[...] = jnp.asarray(weight)
    return layer


def optimizer(model: nnx.Module) -> nnx.Optimizer:
    rule = optax.rmsprop(1e-3, decay=0.9, eps=1e-7, eps_in_sqrt=False)
    return nnx.Optimizer(model, rule, wrt=nnx.Param)


def loss(model: nnx.Module, x: jax.Array, y: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(model(x), y[:, None], axis=1)
    return -jnp.mean(jnp.log(jnp.maximum(chosen, 1e-7)))


def predict(model: nnx.Module, x: np.ndarray) -> np.ndarray:
    return np.asarray(model(x))
