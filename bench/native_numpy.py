"""What the benchmarks need of NumPy. It has no AMP of its own: O1 is compared with float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from measuring import Maker, Step
from steps import Fresh, Shape, Task, beside, bridged, pooled

import ampbridge as amp
import ampbridge_numpy.functional as F
from ampbridge_numpy import nn

POLICIES = {"O1 float16": "O1", "O1 bfloat16": "O1:bfloat16"}
Module, add_n = nn.Module, sum
Tensor = object  # no read of an array waits: all values are on the host
device, wait, own_scaler = "CPU", None, None


def loss_fn(model: nn.Module, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return nn.cross_entropy(model(x), y)


def task(model: nn.Module, x: np.ndarray, y: np.ndarray) -> Task:
    return Task(model, loss_fn, (x, y))


class Block(nn.Module):
    """One encoder layer: attention and a two-layer MLP, each added and normalised."""

    def __init__(self, width: int) -> None:
        self.attention = nn.MultiHeadAttention(width, 4)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: np.ndarray) -> np.ndarray:
        x = self.norm_1(x + self.attention(x))
        return self.norm_2(x + self.mlp(x))


def transformer(shape: Shape) -> nn.Module:
    encoder = nn.Sequential(*(Block(shape.width) for _ in range(shape.layers)))
    return pooled(nn.Module, encoder, nn.Linear(shape.width, shape.classes))


def loop(fresh: Fresh, make_scaler: Any = None) -> Step:
    """A loop by hand in float32, with a scaler of ours or none."""
    model, loss_fn, batch, adamw = fresh()
    optimizer, scaler = adamw(model), make_scaler and make_scaler()

    def step() -> None:
        _, grads = amp.value_and_grad(loss_fn, model, *batch, policy="O0", scaler=scaler)
        if scaler is None:
            optimizer.step(list(grads))
        else:
            scaler.step(optimizer, grads)
            scaler.update()

    return step


def compared(fresh: Fresh, scaled: bool = False) -> dict[str, Maker]:
    return beside("float32 (O0)", partial(bridged, fresh, "O0"), fresh, POLICIES)


def cases(fresh: Fresh, workload: str) -> Iterator[tuple[str, Mapping[str, Maker]]]:
    yield "against float32", compared(fresh)


def weight(model: nn.Module, *shape: int) -> nn.Parameter:
    return nn.Parameter(np.full(shape, 1 / shape[-1]))


def ops(model: Any) -> dict[str, Any]:
    return {"relu": F.relu, "linear": lambda x: F.linear(x, model.weight), "softmax": F.softmax}
