"""SimpleNet in JAX, of modules of flax nnx."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx


def simplenet(weights: Sequence[np.ndarray]) -> nnx.Module:
    layers = []
    for weight in weights:
        layers += [linear(weight), nnx.relu]
    return nnx.Sequential(*layers[:-1])


def linear(weight: np.ndarray) -> nnx.Linear:
    layer = nnx.Linear(*weight.shape, rngs=nnx.Rngs(0))  # its bias is zero
    layer.kernel[...] = jnp.asarray(weight)
    return layer


def optimizer(model: nnx.Module, learning_rate: float) -> nnx.Optimizer:
    return nnx.Optimizer(model, optax.sgd(learning_rate), wrt=nnx.Param)


def loss(model: nnx.Module, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean(optax.squared_error(model(x), y))


def tensor(array: np.ndarray) -> jax.Array:
    return jnp.asarray(array)


def device() -> str:
    found = jax.devices()[0]
    return "a CPU" if found.platform == "cpu" else found.device_kind


def wait() -> None:
    jnp.zeros(()).block_until_ready()  # a device works in the order of the calls
