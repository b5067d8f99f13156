"""The workloads in PaddlePaddle."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ampbridge.workloads.weights import HEADS, WIDTH, Weights


def mlp(weights: Weights) -> nn.Layer:
    """Two hidden layers over the 64 pixels."""
    return nn.Sequential(
        nn.Flatten(),
        linear(weights, "hidden1"),
        nn.GELU(),
        linear(weights, "hidden2"),
        nn.GELU(),
        linear(weights, "head"),
    )


def conv(weights: Weights) -> nn.Layer:
    """Two convolutions with batch norm, the second of stride 2."""
    return nn.Sequential(
        conv2d(weights, "conv1", padding=1),
        nn.BatchNorm2D(8),
        nn.GELU(),
        conv2d(weights, "conv2", stride=2),
        nn.BatchNorm2D(16),
        nn.GELU(),
        nn.Flatten(),
        linear(weights, "head"),
    )


def transformer(weights: Weights) -> nn.Layer:
    """One pre-norm encoder block over 16 tokens, then their mean."""
    return Transformer(weights)


class Transformer(nn.Layer):
    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.embedding = embedding(weights)
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = attention(weights)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.feed_forward = nn.Sequential(
            linear(weights, "widen"), nn.GELU(), linear(weights, "narrow")
        )
        self.norm3 = nn.LayerNorm(WIDTH)
        self.head = linear(weights, "head")

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.attention(self.norm1(x))
        x = x + self.feed_forward(self.norm2(x))
        return self.head(self.norm3(x.mean(axis=1)))


def optimizer(model: nn.Layer, learning_rate: float = 0.1) -> paddle.optimizer.Optimizer:
    return paddle.optimizer.Momentum(learning_rate, momentum=0.9, parameters=model.parameters())


def loss(model: nn.Layer, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


@paddle.no_grad()
def predict(model: nn.Layer, x: np.ndarray) -> np.ndarray:
    """The most likely class of each input, with batch norm's running statistics."""
    model.eval()
    classes: np.ndarray = model(paddle.to_tensor(x)).argmax(axis=1).numpy()
    model.train()
    return classes


def linear(weights: Weights, name: str) -> nn.Linear:
    weight = weights[f"{name}.weight"]
    layer = nn.Linear(*weight.shape)
    layer.weight.set_value(weight)
    layer.bias.set_value(weights[f"{name}.bias"])
    return layer


def conv2d(weights: Weights, name: str, **geometry: int) -> nn.Conv2D:
    weight = weights[f"{name}.weight"]
    outputs, inputs, *kernel = weight.shape
    layer = nn.Conv2D(inputs, outputs, kernel, bias_attr=False, **geometry)
    layer.weight.set_value(weight)
    return layer


def embedding(weights: Weights) -> nn.Embedding:
    layer = nn.Embedding(*weights["embedding"].shape)
    layer.weight.set_value(weights["embedding"])
    return layer


def attention(weights: Weights) -> nn.MultiHeadAttention:
    layer = nn.MultiHeadAttention(WIDTH, HEADS)
    layer.q_proj = linear(weights, "query")
    layer.k_proj = linear(weights, "key")
    layer.v_proj = linear(weights, "value")
    layer.out_proj = linear(weights, "output")
    return layer
