"""A model of sixty ops that all run in float16, of which a few may be made to fail there.

Every op has a layer and a weight of its own. The loss is the sum of what they return, each divided
by its size in float32, so that one that is wrong shows. All are on the allow list: each takes what
it is handed to float16, whatever the others do, and denied it gets the float32 numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np

import ampbridge as amp
from ampbridge_numpy import functional, nn

EVEN = np.linspace(0.3, 0.7, 8, dtype=np.float32)
ROWS = np.linspace(0.4, 0.6, 8, dtype=np.float32)

# Canonical name -> what is done with eight numbers from 0.3 to 0.7.
OPS: dict[str, Callable[[Any], Any]] = {
    "exp": lambda x: anp.exp(x),
    "exp2": lambda x: anp.exp2(x),
    "expm1": lambda x: anp.expm1(x),
    "log": lambda x: anp.log(x),
    "log2": lambda x: anp.log2(x),
    "log10": lambda x: anp.log10(x),
    "log1p": lambda x: anp.log1p(x),
    "pow": lambda x: anp.power(x, 2.5),
    "square": lambda x: anp.square(x),
    "sqrt": lambda x: anp.sqrt(x),
    "reciprocal": lambda x: anp.reciprocal(x),
    "sin": lambda x: anp.sin(x),
    "cos": lambda x: anp.cos(x),
    "tan": lambda x: anp.tan(x),
    "asin": lambda x: anp.arcsin(x),
    "acos": lambda x: anp.arccos(x),
    "atan": lambda x: anp.arctan(x),
    "sinh": lambda x: anp.sinh(x),
    "cosh": lambda x: anp.cosh(x),
    "asinh": lambda x: anp.arcsinh(x),
    "acosh": lambda x: anp.arccosh(x),
    "atanh": lambda x: anp.arctanh(x),
    "atan2": lambda x: anp.arctan2(x, ROWS),
    "sinc": lambda x: anp.sinc(x),
    "hypot": lambda x: anp.hypot(x, ROWS),
    "abs": lambda x: anp.abs(x),
    "neg": lambda x: anp.negative(x),
    "clamp": lambda x: anp.clip(x, 0.0, 1e6),
    "add": lambda x: anp.add(x, ROWS),
    "subtract": lambda x: anp.subtract(x, 2 * ROWS),
    "divide": lambda x: anp.divide(x, ROWS),
    "maximum": lambda x: anp.maximum(x, ROWS),
    "minimum": lambda x: anp.minimum(x, ROWS),
    "logaddexp": lambda x: anp.logaddexp(x, ROWS),
    "tanh": lambda x: anp.tanh(x),
    "mean": lambda x: anp.mean(x),
    "amax": lambda x: anp.max(x),
    "amin": lambda x: anp.min(x),
    "var": lambda x: anp.var(x),
    "std": lambda x: anp.std(x),
    "prod": lambda x: anp.prod(x),
    "cumsum": lambda x: anp.cumsum(x),
    "matmul": lambda x: anp.matmul(x, ROWS),
    "dot": lambda x: anp.dot(x, ROWS),
    "inner": lambda x: anp.inner(x, ROWS),
    "outer": lambda x: anp.outer(x, ROWS),
    "tensordot": lambda x: anp.tensordot(x, ROWS, 1),
    "einsum": lambda x: anp.einsum("i,i->", x, ROWS),
    "kron": lambda x: anp.kron(x, ROWS),
    "norm": lambda x: anp.linalg.norm(x),
    "linear": lambda x: functional.linear(x[None], ROWS[:, None]),
    "softmax": lambda x: functional.softmax(x[None]),
    "log_softmax": lambda x: functional.log_softmax(x[None]),
    "sigmoid": lambda x: functional.sigmoid(x),
    "silu": lambda x: functional.silu(x),
    "gelu": lambda x: functional.gelu(x),
    "where": lambda x: anp.where(ROWS > 0.5, x, ROWS),
    "sort": lambda x: anp.sort(x),
    "mse_loss": lambda x: functional.mse_loss(x, ROWS),
    "tile": lambda x: anp.tile(x, 2),
}
SOUND = {"acosh": EVEN + 1.5, "log": EVEN / 2, "log2": EVEN / 2, "log10": EVEN / 2}

# What an op is handed so that float16 fails and float32 does not. All others overflow: 3e4 to 7e4.
FAULTS = {
    **dict.fromkeys(["exp", "expm1", "sinh", "cosh"], EVEN + 12),  # 1.6e5 and more
    "exp2": EVEN + 17,
    **dict.fromkeys(["log", "log2", "log10"], EVEN * 1e-9),  # flushed to zero, whose log is -inf
    **dict.fromkeys(["var", "std"], EVEN + 1000),  # one spacing of float16 is 0.5 there
    **dict.fromkeys(["asin", "acos", "atanh"], 1 - EVEN * 1e-5),  # rounds to 1: a slope of 1/0
    **dict.fromkeys(
        ["atan", "atan2", "minimum", "tanh"], EVEN * 1e-9
    ),  # flushed, and so is all of it
    "reciprocal": EVEN * 1e-9,  # flushed, and 1/0
    "amin": EVEN * 1e6,
    "sigmoid": EVEN - 25,  # what it returns is flushed
    "subtract": 2 * ROWS + EVEN * 1e-4,  # nearly equal: nothing is left of the difference
}
OVERFLOWING = EVEN * 1e5


class Term(nn.Module):
    """One op on a weight times what it is handed, both float32, divided by how large that is."""

    def __init__(self, op: str, handed: np.ndarray) -> None:
        self.weight = nn.Parameter(np.ones(8, np.float32))
        self.handed, self.function = handed, OPS[op]
        whole = np.sum(self.function(handed.astype(np.float64)))
        self.factor = np.full(1, 1 / whole, np.float32)

    def forward(self, x: Any) -> Any:
        result = self.function(self.weight * x * self.handed)
        return anp.sum(result * self.factor)


class SixtyOps(nn.Module):
    """The mean over all of them. ``faulty`` names those that fail in float16."""

    def __init__(self, *faulty: str) -> None:
        handed = {op: SOUND.get(op, EVEN) for op in OPS}
        handed |= {op: FAULTS.get(op, OVERFLOWING) for op in faulty}
        self.terms = [Term(op, values) for op, values in handed.items()]

    def forward(self, x: Any) -> Any:
        return anp.sum(
            anp.stack([term(x) for term in self.terms]) * np.float32(1 / len(self.terms))
        )


def loss_fn(model: nn.Module, x: np.ndarray) -> Any:
    return model(x)


BATCHES = [(np.ones(8, np.float32),), (np.full(8, 0.99999, np.float32),)]
SCALE = 2.0**8  # at 2**16 gradients of some sound ops overflow as well
ALL_LOW = amp.Policy("O1", allow=list(OPS))
