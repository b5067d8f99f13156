"""The workloads in NumPy, with the layers that come with ampbridge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ampbridge as amp
from ampbridge.workloads.weights import HEADS, WIDTH, Weights
from ampbridge_numpy import nn, optim
from ampbridge_numpy.functional import Array


def mlp(weights: Weights) -> nn.Module:
    """Two hidden layers over the 64 pixels."""
    return nn.Sequential(
        nn.Flatten(),
        linear(weights, "hidden1"),
        nn.GELU(),
        linear(weights, "hidden2"),
        nn.GELU(),
        linear(weights, "head"),
    )


def conv(weights: Weights) -> nn.Module:
    """Two convolutions with batch norm, the second of stride 2."""
    return nn.Sequential(
        conv2d(weights, "conv1", padding=1),
        nn.BatchNorm2d(8),
        nn.GELU(),
        conv2d(weights, "conv2", stride=2),
        nn.BatchNorm2d(16),
        nn.GELU(),
        nn.Flatten(),
        linear(weights, "head"),
    )


def transformer(weights: Weights) -> nn.Module:
    """One pre-norm encoder block over 16 tokens, then their mean."""
    return Transformer(weights)


class Transformer(nn.Module):
    def __init__(self, weights: Weights) -> None:
        self.embedding = embedding(weights)
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = attention(weights)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.feed_forward = nn.Sequential(
            linear(weights, "widen"), nn.GELU(), linear(weights, "narrow")
        )
        self.norm3 = nn.LayerNorm(WIDTH)
        self.head = linear(weights, "head")

    def forward(self, tokens: np.ndarray) -> Array:
        x = self.embedding(tokens)
        x = x + self.attention(self.norm1(x))
        x = x + self.feed_forward(self.norm2(x))
        return self.head(self.norm3(x.mean(axis=1)))


def optimizer(model: nn.Module, learning_rate: float = 0.1) -> optim.Optimizer:
    return optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)


def loss(model: nn.Module, x: np.ndarray, y: np.ndarray) -> Array:
    return nn.cross_entropy(model(x), y)


def predict(model: nn.Module, x: np.ndarray) -> np.ndarray:
    """The most likely class of each input, with batch norm's running statistics."""
    model.eval()
    classes: np.ndarray = model(x).argmax(axis=1)
    model.train()
    return classes


def float64_gradients(
    loss_fn: Callable[..., Any], model: nn.Module, batch: Sequence[Any]
) -> dict[str, np.ndarray]:
    """The gradients of ``loss_fn(model, *batch)`` by the parameters' names, all of it in float64.

    Changes the model's parameters to float64.
    """
    for _, module in model.named_modules():
        for name, parameter in list(module._own_parameters().items()):
            setattr(module, name, nn.Parameter(parameter.astype(np.float64)))
    wide = [in_float64(each) for each in batch]
    _, gradients = amp.value_and_grad(loss_fn, model, *wide, policy="O0")
    return dict(zip(amp.backend(model).parameter_names(model), gradients, strict=True))


def in_float64(x: Any) -> Any:
    """A float32 array as float64; anything else as it is."""
    is_float32 = isinstance(x, np.ndarray) and x.dtype == np.float32
    return x.astype(np.float64) if is_float32 else x


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


def embedding(weights: Weights) -> nn.Embedding:
    layer = nn.Embedding(*weights["embedding"].shape)
    layer.weight[...] = weights["embedding"]
    return layer


def attention(weights: Weights) -> nn.MultiHeadAttention:
    layer = nn.MultiHeadAttention(WIDTH, HEADS)
    layer.query = linear(weights, "query")
    layer.key = linear(weights, "key")
    layer.value = linear(weights, "value")
    layer.output = linear(weights, "output")
    return layer
