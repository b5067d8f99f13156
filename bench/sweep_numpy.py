"""The NumPy side of sweep.py: O1 over float32."""

from __future__ import annotations

from functools import partial

import numpy as np
from overhead_numpy import POLICIES, step_of
from sweep import WIDTH, Makers, batch

import ampbridge_numpy.functional as F
from ampbridge_numpy import nn


class ManyParameters(nn.Module):
    """So many parameters, whose sum multiplies the input."""

    def __init__(self, count: int) -> None:
        super().__init__()
        for number in range(count):
            setattr(self, f"weight_{number}", nn.Parameter(np.ones(WIDTH, np.float32)))
        self.count = count

    def forward(self, x: np.ndarray) -> np.ndarray:
        total = sum(getattr(self, f"weight_{number}") for number in range(self.count))
        return x * total


class Chain(nn.Module):
    """``count`` ops in a row."""

    def __init__(self, op: str, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(np.eye(WIDTH, dtype=np.float32))
        self.op, self.count = op, count

    def forward(self, x: np.ndarray) -> np.ndarray:
        op = {"relu": F.relu, "linear": lambda x: F.linear(x, self.weight), "softmax": F.softmax}
        x = x * self.weight[0]
        for _ in range(self.count):
            x = op[self.op](x)
        return x


def makers(swept: str, count: int) -> Makers:
    x, y = batch()
    return {name: partial(_made, swept, count, x, y, policy) for name, policy in POLICIES.items()}


def _made(swept: str, count: int, x: np.ndarray, y: np.ndarray, policy: str):
    model = ManyParameters(count) if swept == "parameters" else Chain(swept, count)
    return step_of(model, x, y, policy)
