"""The part of ``ampbridge.neutral`` that needs NumPy; see ``ampbridge.neutral.native.Native``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np

from ampbridge.neutral.modules import Layers, evaluating
from ampbridge.neutral.weights import BLOCK, Weights, numbered
from ampbridge_numpy import nn, optim
from ampbridge_numpy.autocast.casting import value_of
from ampbridge_numpy.functional import Array
from ampbridge_numpy.step.gradients import parameters

# -- models


class Transformer(nn.Module):
    def __init__(self, weights: Weights, heads: int, causal: bool) -> None:
        width = weights["embedding"].shape[1]
        self.embedding = embedding(weights)
        if "positions" in weights:
            self.positions = nn.Parameter(weights["positions"])
        blocks = range(1, len(numbered(weights, "query")) + 1)
        self.blocks = [Block(weights, number, heads, causal) for number in blocks]
        self.norm = nn.LayerNorm(width)
        self.head = linear(weights, "head")
        self.causal, self.placed = causal, "positions" in weights

    def forward(self, tokens: np.ndarray) -> Array:
        x = self.embedding(tokens)
        if self.placed:
            x = x + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x if self.causal else x.mean(axis=1)))


class Block(nn.Module):
    def __init__(self, weights: Weights, number: int, heads: int, causal: bool) -> None:
        width = weights["embedding"].shape[1]
        query, key, value, output, widen, narrow = (
            linear(weights, f"{name}{number}") for name in BLOCK
        )
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiHeadAttention(width, heads)
        self.attention.query, self.attention.key = query, key
        self.attention.value, self.attention.output = value, output
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(widen, nn.GELU(), narrow)
        self.causal = causal

    def forward(self, x: Array) -> Array:
        x = x + self.attention(self.norm1(x), is_causal=self.causal)
        return x + self.feed_forward(self.norm2(x))


def linear(weights: Weights, name: str) -> nn.Linear:
    layer = nn.Linear(*weights[f"{name}.weight"].shape)
    layer.weight[...] = weights[f"{name}.weight"]
    layer.bias[...] = weights[f"{name}.bias"]
    return layer


def conv2d(weights: Weights, name: str, **geometry: int) -> nn.Conv2d:
    weight = weights[f"{name}.weight"]
    outputs, inputs, kernel, _ = weight.shape
    layer = nn.Conv2d(inputs, outputs, kernel, bias=False, **geometry)
    layer.weight[...] = weight
    return layer


_LAYERS = Layers(nn, linear, conv2d, nn.BatchNorm2d)
mlp, convnet, transformer = _LAYERS.mlp, _LAYERS.convnet, Transformer


def embedding(weights: Weights) -> nn.Embedding:
    layer = nn.Embedding(*weights["embedding"].shape)
    layer.weight[...] = weights["embedding"]
    return layer


def forward(model: nn.Module, inputs: Sequence[Any]) -> Any:
    return model(*inputs)


def inference(model: nn.Module, x: Any) -> Any:
    with evaluating(model, [module for _, module in model.named_modules()]):
        return model(x)


# -- optimizers


def optimizer(name: str, model: nn.Module, settings: Mapping[str, Any]) -> optim.Optimizer:
    if name == "sgd":
        return optim.SGD(parameters(model), **settings)
    return optim.AdamW(parameters(model), **{"weight_decay": 0.0, **settings})


def rates(optimizer: optim.Optimizer) -> list[float]:
    return [float(optimizer.lr)]


def set_rates(optimizer: optim.Optimizer, rates: Sequence[float]) -> None:
    (optimizer.lr,) = rates


# -- tensors and losses


def tensor(x: Any, like: Array) -> Array:
    return np.asarray(x) if isinstance(x, (list, tuple)) else x


def is_integer(x: Array) -> bool:
    return x.dtype.kind in "iu"


def at_hand(x: Array) -> np.ndarray:
    return host(x)


def host(x: Array) -> np.ndarray:
    return np.asarray(value_of(x))


def rows(x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    chosen: np.ndarray = x[indices]
    return chosen


def cross_entropy(logits: Array, labels: Array, axis: int, ignore_index: int) -> Array:
    return nn.cross_entropy(anp.moveaxis(logits, axis, -1), labels, ignore_index)


def mse_loss(prediction: Array, target: Array) -> Array:
    return nn.mse_loss(prediction, target)
