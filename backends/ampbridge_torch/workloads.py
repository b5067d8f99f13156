"""The workloads in PyTorch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampbridge.workloads.weights import HEADS, WIDTH, Weights


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
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(tensor(weights["embedding"]), freeze=False)
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
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.feed_forward(self.norm2(x))
        logits: Tensor = self.head(self.norm3(x.mean(dim=1)))
        return logits


def optimizer(model: nn.Module, learning_rate: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


@torch.no_grad()
def predict(model: nn.Module, x: np.ndarray) -> np.ndarray:
    """The most likely class of each input, with batch norm's running statistics."""
    model.eval()
    classes: np.ndarray = model(torch.from_numpy(x)).argmax(dim=1).numpy()
    model.train()
    return classes


def linear(weights: Weights, name: str) -> nn.Linear:
    weight = weights[f"{name}.weight"]
    layer = nn.Linear(*weight.shape)
    layer.load_state_dict({"weight": tensor(weight.T), "bias": tensor(weights[f"{name}.bias"])})
    return layer


def conv2d(weights: Weights, name: str, *, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    weight = weights[f"{name}.weight"]
    outputs, inputs, *kernel = weight.shape
    layer = nn.Conv2d(inputs, outputs, tuple(kernel), stride, padding, bias=False)
    layer.load_state_dict({"weight": tensor(weight)})
    return layer


def attention(weights: Weights) -> nn.MultiheadAttention:
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    inputs = ("query", "key", "value")  # one matrix in PyTorch
    layer.load_state_dict(
        {
            "in_proj_weight": tensor(np.concatenate([weights[f"{n}.weight"].T for n in inputs])),
            "in_proj_bias": tensor(np.concatenate([weights[f"{n}.bias"] for n in inputs])),
            "out_proj.weight": tensor(weights["output.weight"].T),
            "out_proj.bias": tensor(weights["output.bias"]),
        }
    )
    return layer


def tensor(array: np.ndarray) -> Tensor:
    return torch.tensor(np.ascontiguousarray(array))
