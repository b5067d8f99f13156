"""The part of ``ampbridge.neutral`` that needs JAX; see ``ampbridge.neutral.native.Native``.

Flax puts channels last; images arrive channels first and are turned around inside the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from ampbridge.neutral.modules import evaluating
from ampbridge.neutral.weights import BLOCK, Weights, numbered
from ampbridge_jax._private import fill, value_of
from ampbridge_jax.model.kinds import kind_of, named_modules
from ampbridge_jax.optimizers import Optimizer, slots
from ampbridge_jax.step.arrays import native_array

Array = jax.Array

_RATE = "/hyperparams/learning_rate"
_SCHEDULED = "/hyperparams_states/learning_rate"


# -- models


def gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=False)


def flatten(x: Array) -> Array:
    return x.reshape(len(x), -1)


def channels_last(x: Array) -> Array:
    return jnp.moveaxis(x, 1, -1)


def channels_first(x: Array) -> Array:
    return jnp.moveaxis(x, -1, 1)


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
}


def mlp(weights: Weights, inputs: Sequence[int], activation: str) -> nnx.Sequential:
    layers: list[Any] = [flatten]
    for name in numbered(weights, "hidden"):
        layers += [linear(weights, name), ACTIVATIONS[activation]]
    return nnx.Sequential(*layers, linear(weights, "head"))


def convnet(weights: Weights, inputs: Sequence[int], activation: str) -> nnx.Sequential:
    layers: list[Any] = [channels_last]
    geometry: dict[str, Any] = {"padding": "SAME"}
    for name in numbered(weights, "conv"):
        channels = weights[f"{name}.weight"].shape[0]
        layers += [
            conv(weights, name, **geometry),
            nnx.BatchNorm(channels, momentum=0.9, epsilon=1e-5, rngs=nnx.Rngs(0)),
            ACTIVATIONS[activation],
        ]
        geometry = {"padding": "VALID", "strides": 2}
    return nnx.Sequential(*layers, channels_first, flatten, linear(weights, "head"))


class Transformer(nnx.Module):
    def __init__(self, weights: Weights, heads: int, causal: bool) -> None:
        vocabulary, width = weights["embedding"].shape
        self.embedding = nnx.Embed(vocabulary, width, rngs=nnx.Rngs(0))
        fill(self.embedding.embedding, jnp.array(weights["embedding"]))
        placed = "positions" in weights
        self.positions = nnx.Param(jnp.array(weights["positions"])) if placed else None
        blocks = range(1, len(numbered(weights, "query")) + 1)
        self.blocks = nnx.List(Block(weights, number, heads, causal) for number in blocks)
        self.norm = nnx.LayerNorm(width, epsilon=1e-5, rngs=nnx.Rngs(0))
        self.head = linear(weights, "head")
        self.causal = causal

    def __call__(self, tokens: Array) -> Array:
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x if self.causal else jnp.mean(x, axis=1)))


class Block(nnx.Module):
    def __init__(self, weights: Weights, number: int, heads: int, causal: bool) -> None:
        width, rngs = weights["embedding"].shape[1], nnx.Rngs(0)
        self.norm1 = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
        self.attention = attention(weights, number, heads)
        self.norm2 = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
        widen, narrow = (linear(weights, f"{name}{number}") for name in BLOCK[4:])
        self.feed_forward = nnx.Sequential(widen, gelu, narrow)
        self.causal = causal

    def __call__(self, x: Array) -> Array:
        x = x + self.attention(self.norm1(x), is_causal=self.causal)
        result: Array = x + self.feed_forward(self.norm2(x))
        return result


transformer = Transformer


def linear(weights: Weights, name: str) -> nnx.Linear:
    weight = weights[f"{name}.weight"]
    layer = nnx.Linear(*weight.shape, rngs=nnx.Rngs(0))
    fill(layer.kernel, jnp.array(weight))
    fill(layer.bias, jnp.array(weights[f"{name}.bias"]))
    return layer


def conv(weights: Weights, name: str, **geometry: Any) -> nnx.Conv:
    weight = weights[f"{name}.weight"].transpose(2, 3, 1, 0)
    *kernel, inputs, outputs = weight.shape
    layer = nnx.Conv(inputs, outputs, kernel, use_bias=False, rngs=nnx.Rngs(0), **geometry)
    fill(layer.kernel, jnp.array(weight))
    return layer


def attention(weights: Weights, number: int, heads: int) -> nnx.MultiHeadAttention:
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


def forward(model: nnx.Module, inputs: Sequence[Any]) -> Any:
    return model(*inputs)


def inference(model: nnx.Module, x: Any) -> Any:
    modes, modules = kind_of(model).modes, [module for _, module in named_modules(model)]
    with evaluating(model, modules, modes) if modes else nullcontext():
        return model(native_array(x))


# -- optimizers


def optimizer(name: str, model: nnx.Module, settings: Mapping[str, Any]) -> Optimizer:
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
        adam = dict(zip(("b1", "b2"), settings["betas"], strict=True)) | {"eps": settings["eps"]}
        if name == "adam":
            return optax.adam(learning_rate, **adam)
        return optax.adamw(learning_rate, weight_decay=settings["weight_decay"], **adam)

    made = optax.inject_hyperparams(rule, hyperparam_dtype=jnp.float32)
    return Optimizer(model, made(settings["lr"]))


def rates(optimizer: nnx.Optimizer[Any]) -> list[float] | None:
    found = _rates(optimizer)
    return [float(value_of(rate)) for rate in found] if found else None


def set_rates(optimizer: nnx.Optimizer[Any], rates: Sequence[float]) -> None:
    for variable, rate in zip(_rates(optimizer), rates, strict=True):
        fill(variable, jnp.asarray(rate, variable.dtype))


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


# -- tensors and losses


def tensor(x: Any, like: Array) -> Array:
    array: Array = native_array(np.asarray(x) if isinstance(x, (list, tuple)) else x)
    return array


def is_integer(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.integer))


def at_hand(x: Array) -> np.ndarray | None:
    traced = isinstance(x, jax.core.Tracer)
    return None if traced or {device.platform for device in x.devices()} != {"cpu"} else host(x)


def host(x: Any) -> np.ndarray:
    return np.asarray(x)


def rows(x: Array, indices: np.ndarray) -> Array:
    return x[indices]


def cross_entropy(logits: Array, labels: Array, axis: int, ignore_index: int) -> Array:
    labels = labels.astype(jnp.int32)
    counts = labels != ignore_index
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits, jnp.where(counts, labels, 0), axis
    )
    return jnp.mean(losses, where=counts)


def mse_loss(prediction: Array, target: Array) -> Array:
    return jnp.mean(jnp.square(prediction - target))
