"""The part of ``ampbridge.neutral`` that needs JAX; see ``ampbridge.neutral.native.Native``.

Flax puts channels last; images arrive channels first and are turned around inside the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from ampbridge.neutral import modules
from ampbridge.neutral.weights import BLOCK, Weights
from ampbridge_jax._private import fill, value_of
from ampbridge_jax.model.kinds import kind_of, named_modules
from ampbridge_jax.optimizers import Optimizer, slots
from ampbridge_jax.step.arrays import native_array

Array = jax.Array

_RATE = "/hyperparams/learning_rate"
_SCHEDULED = "/hyperparams_states/learning_rate"


def gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=False)


def flatten(x: Array) -> Array:
    return x.reshape(len(x), -1)


def channels_last(x: Array) -> Array:
    return jnp.moveaxis(x, 1, -1)


def channels_first(x: Array) -> Array:
    return jnp.moveaxis(x, -1, 1)


def _rates(optimizer: nnx.Optimizer[Any]) -> list[Any]:
    """The Variables of ``optax.inject_hyperparams`` that no schedule of optax writes to."""
    held = slots(optimizer)
    names = [name for name, _ in held]
    return [
        variable
        for name, variable in held
        if name.endswith(_RATE)
        and not any(other.startswith(name.removesuffix(_RATE) + _SCHEDULED) for other in names)
    ]


class Block(modules.Block, nnx.Module):
    """The block, as a module of flax."""

    __call__ = modules.Block.forward


class Transformer(modules.Transformer, nnx.Module):
    """The model, as a module of flax."""

    __call__ = modules.Transformer.forward


class Native(modules.Native):
    """Modules of flax, and optimizers of optax."""

    layers = SimpleNamespace(
        Sequential=nnx.Sequential,
        Flatten=lambda: flatten,
        GELU=lambda: gelu,
        ReLU=lambda: jax.nn.relu,
        Tanh=lambda: jnp.tanh,
    )
    module_list = nnx.List
    block_class, transformer_class = Block, Transformer

    def linear(self, weights: Weights, name: str) -> nnx.Linear:
        weight = weights[f"{name}.weight"]
        layer = nnx.Linear(*weight.shape, rngs=nnx.Rngs(0))
        fill(layer.kernel, jnp.array(weight))
        fill(layer.bias, jnp.array(weights[f"{name}.bias"]))
        return layer

    def conv2d(self, weights: Weights, name: str, stride: int = 1, padding: int = 0) -> nnx.Conv:
        weight = weights[f"{name}.weight"].transpose(2, 3, 1, 0)
        *kernel, inputs, outputs = weight.shape
        geometry: dict[str, Any] = {"strides": stride, "padding": padding}
        layer = nnx.Conv(inputs, outputs, kernel, use_bias=False, rngs=nnx.Rngs(0), **geometry)
        fill(layer.kernel, jnp.array(weight))
        return layer

    def attention(self, weights: Weights, number: int, heads: int) -> nnx.MultiHeadAttention:
        """Flax keeps heads apart: (width, heads, size) for the inputs, (heads, size, width) after."""
        width = weights["embedding"].shape[1]
        layer = nnx.MultiHeadAttention(heads, width, decode=False, rngs=nnx.Rngs(0))
        layers = (layer.query, layer.key, layer.value, layer.out)
        for name, part in zip(BLOCK[:4], layers, strict=True):
            variables: Sequence[Any] = (part.kernel, part.bias)
            for variable, kind in zip(variables, ("weight", "bias"), strict=True):
                values = weights[f"{name}{number}.{kind}"]
                fill(variable, jnp.array(values.reshape(variable.shape)))
        return layer

    def turned(self, layers: list[Any]) -> list[Any]:
        return [channels_last, *layers, channels_first]

    def batch_norm(self, channels: int) -> nnx.BatchNorm:
        return nnx.BatchNorm(channels, momentum=0.9, epsilon=1e-5, rngs=nnx.Rngs(0))

    def layer_norm(self, width: int) -> nnx.LayerNorm:
        return nnx.LayerNorm(width, epsilon=1e-5, rngs=nnx.Rngs(0))

    def embedding(self, weights: Weights) -> nnx.Embed:
        layer = nnx.Embed(*weights["embedding"].shape, rngs=nnx.Rngs(0))
        fill(layer.embedding, jnp.array(weights["embedding"]))
        return layer

    def parameter(self, values: np.ndarray) -> nnx.Param[Any]:
        return nnx.Param(jnp.array(values))

    def inference(self, model: nnx.Module, x: Any) -> Any:
        modes, layers = kind_of(model).modes, [module for _, module in named_modules(model)]
        with modules.evaluating(model, layers, modes) if modes else nullcontext():
            return model(native_array(x))

    def optimizer(self, name: str, model: nnx.Module, settings: Mapping[str, Any]) -> Optimizer:
        """The learning rate is a part of its state, so that a new one needs no new trace.

        Raises:
            ArgumentError: for a model of Keras.
        """
        kind_of(model).check_for_optax(model)

        def rule(learning_rate: Any) -> Any:
            if name == "sgd":
                return optax.chain(
                    optax.add_decayed_weights(settings["weight_decay"]),
                    optax.sgd(learning_rate, settings["momentum"] or None, settings["nesterov"]),
                )
            first, second = settings["betas"]
            adam = {"b1": first, "b2": second, "eps": settings["eps"]}
            if name == "adam":
                return optax.adam(learning_rate, **adam)
            return optax.adamw(learning_rate, weight_decay=settings["weight_decay"], **adam)

        made = optax.inject_hyperparams(rule, hyperparam_dtype=jnp.float32)
        return Optimizer(model, made(settings["lr"]))

    def rates(self, optimizer: nnx.Optimizer[Any]) -> list[float] | None:
        found = _rates(optimizer)
        return [float(value_of(rate)) for rate in found] if found else None

    def set_rates(self, optimizer: nnx.Optimizer[Any], rates: Sequence[float]) -> None:
        for variable, rate in zip(_rates(optimizer), rates, strict=True):
            fill(variable, jnp.asarray(rate, variable.dtype))

    def tensor(self, x: Any, like: Array) -> Array:
        array: Array = native_array(np.asarray(x) if isinstance(x, (list, tuple)) else x)
        return array

    def at_hand(self, x: Array) -> np.ndarray | None:
        traced = isinstance(x, jax.core.Tracer)
        on_cpu = not traced and {device.platform for device in x.devices()} == {"cpu"}
        return self.host(x) if on_cpu else None

    def cross_entropy(self, logits: Array, labels: Array, axis: int, ignore_index: int) -> Array:
        labels = labels.astype(jnp.int32)
        counts = labels != ignore_index
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits, jnp.where(counts, labels, 0), axis
        )
        return jnp.mean(losses, where=counts)

    def mse_loss(self, prediction: Array, target: Array) -> Array:
        return jnp.mean(jnp.square(prediction - target))


native = Native()
