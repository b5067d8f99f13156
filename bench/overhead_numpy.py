"""The NumPy side of overhead.py: O1 against the same step in float32."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
from overhead import Case, Shape, Step, batch_of

import ampbridge as amp
import ampbridge_numpy  # noqa: F401  # the backend in use
from ampbridge_numpy import nn, optim


def device() -> str:
    return "CPU"


class Block(nn.Module):
    """One encoder layer: attention and a two-layer MLP, each added and normalised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiHeadAttention(width, 4)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: np.ndarray) -> np.ndarray:
        x = self.norm_1(x + self.attention(x))
        return self.norm_2(x + self.mlp(x))


class Transformer(nn.Module):
    """An encoder over tokens, pooled and classified."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(shape.width) for _ in range(shape.layers)))
        self.head = nn.Linear(shape.width, shape.classes)

    def forward(self, x: np.ndarray) -> np.ndarray:
        return self.head(self.blocks(x).mean(axis=1))


def model_of(shape: Shape) -> nn.Module:
    if shape.tokens:
        return Transformer(shape)
    widths = [shape.features, *[shape.width] * shape.layers]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(shape.width, shape.classes))


def loss_fn(model: nn.Module, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return nn.cross_entropy(model(x), y)


def step_of(model: nn.Module, x: np.ndarray, y: np.ndarray, policy: str) -> Step:
    optimizer = optim.AdamW(model.parameters(), lr=1e-4)
    step = amp.train_step(loss_fn, model, optimizer, policy=policy)
    return lambda: step(x, y)


POLICIES = {
    "float32 (O0)": "O0",
    "O1 float16": "O1",
    "O1 bfloat16": "O1:bfloat16",
    "float32 (O0), again": "O0",
}


def cases(shape: Shape, workload: str) -> Iterator[Case]:
    x, y = batch_of(shape)
    makers = {name: partial(made_by, shape, x, y, policy) for name, policy in POLICIES.items()}
    yield Case("against float32", makers)


def made_by(shape: Shape, x: np.ndarray, y: np.ndarray, policy: str) -> Step:
    return step_of(model_of(shape), x, y, policy)
