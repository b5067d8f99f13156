"""Pebble, a toy framework: every op goes through ``run``, and gradients are values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import ml_dtypes
import numpy as np

LOW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_numbers = count()


class Tensor:
    """An array, and what it was made of; ``backward`` turns its gradient into those of ``parents``."""

    def __init__(self, values: Any, parents: Sequence[Tensor] = (), backward: Any = None) -> None:
        self.values, self.parents, self.backward = np.asarray(values), parents, backward
        self.number = next(_numbers)  # higher than those of its parents
        self.dtype, self.shape, self.ndim = self.values.dtype, self.values.shape, self.values.ndim

    def __add__(self, other: Any) -> Tensor:
        return run("add", self, other)

    def __mul__(self, other: Any) -> Tensor:
        return run("multiply", self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __getitem__(self, index: Any) -> Tensor:
        return run("slice", self, index=index)

    def __float__(self) -> float:
        return float(self.values)


class Parameter(Tensor):
    """A tensor that is trained."""


def _normalized(x: Any) -> tuple[Any, Any]:
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return (x - x.mean(-1, keepdims=True)) / deviation, deviation


def _layer_norm_back(g: Any, x: Any, w: Any, b: Any) -> Any:
    (n, deviation), h = _normalized(x), g * w
    centred = h - h.mean(-1, keepdims=True) - n * (h * n).mean(-1, keepdims=True)
    return centred / deviation, g * n, g


def _slice_back(g: Any, x: Any, index: Any) -> Any:
    whole = np.zeros_like(x)
    whole[index] = g
    return (whole,)


# What each op computes of its inputs; and their gradients, of the result's gradient and of them.
OPS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "cast": (lambda x: x, lambda g, x: (g,)),
    "matmul": (np.matmul, lambda g, a, b: (g @ b.T, a.T @ g)),
    "linear": (lambda x, w, b: x @ w + b, lambda g, x, w, b: (g @ w.T, x.T @ g, g)),
    "add": (np.add, lambda g, a, b: (g, g)),
    "multiply": (np.multiply, lambda g, a, b: (g * b, g * a)),
    "exp": (np.exp, lambda g, x: (g * np.exp(x),)),
    "atan2": (np.arctan2, lambda g, y, x: (g * x / (x * x + y * y), -g * y / (x * x + y * y))),
    "relu": (lambda x: np.maximum(x, 0), lambda g, x: (g * (x > 0),)),
    "mse_loss": (
        lambda a, b: np.mean((a - b) ** 2),
        lambda g, a, b: ((a - b) * (2 * g / a.size), (b - a) * (2 * g / a.size)),
    ),
    "layer_norm": (lambda x, w, b: _normalized(x)[0] * w + b, _layer_norm_back),
    "slice": (lambda x, index: x[index], _slice_back),
}


@np.errstate(all="ignore")
def run(op: str, *inputs: Any, dtype: Any = None, **options: Any) -> Tensor:
    """The result of an op, in ``dtype`` or in the widest one of the tensors; numbers follow them.

    An op of 16-bit tensors computes in float32, and rounds its result once.
    """
    forward, back = OPS[op]
    dtypes = {x.dtype for x in inputs if isinstance(x, Tensor)}
    dtype = dtype or (
        dtypes.pop() if len(dtypes) == 1 else FLOAT64 if FLOAT64 in dtypes else FLOAT32
    )
    held = FLOAT32 if dtype in LOW else dtype
    tensors = [x if isinstance(x, Tensor) else Tensor(np.asarray(x, dtype)) for x in inputs]
    arrays = [x.values.astype(held) for x in tensors]

    def backward(g: Any) -> list[Any]:
        parts = zip(back(g.astype(held), *arrays, **options), tensors, strict=True)
        return [_summed(part, x.shape).astype(x.dtype) for part, x in parts]

    out = np.asarray(forward(*arrays, **options)).astype(dtype)
    traced = any(x.parents or isinstance(x, Parameter) for x in tensors)
    return Tensor(out, tensors, backward) if traced else Tensor(out)


def _summed(g: Any, shape: tuple[int, ...]) -> Any:
    """The gradient of what was broadcast from ``shape``."""
    g = g.sum(tuple(range(g.ndim - len(shape))))
    return g.sum(tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)


@np.errstate(all="ignore")
def gradients(loss: Tensor, of: Sequence[Tensor], seed: float = 1.0) -> list[Tensor | None]:
    """The gradients of ``seed * loss``; None where it does not depend on a tensor."""
    made_of, waiting = {loss.number: loss}, [loss]
    while waiting:
        further = {x.number: x for x in waiting.pop().parents if x.number not in made_of}
        made_of |= further
        waiting += further.values()
    found: dict[int, Any] = {loss.number: np.asarray(seed, loss.dtype)}
    for number, tensor in sorted(made_of.items(), reverse=True):
        parts = tensor.backward(found[number]) if tensor.parents else ()
        for parent, part in zip(tensor.parents, parts, strict=True):
            found[parent.number] = found.get(parent.number, 0) + part
    return [Tensor(found[x.number]) if x.number in found else None for x in of]


class Module:
    """A model or a layer. Its attributes that are parameters or modules are its parts."""

    forward: Callable[..., Any]
    around: Callable[..., Any] | None = None  # called in place of forward, with the module ahead

    def __call__(self, *inputs: Any) -> Any:
        return (self.around or type(self).forward)(self, *inputs)

    def modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        yield prefix, self
        for name, part in vars(self).items():
            if isinstance(part, Module):
                yield from part.modules(f"{prefix}.{name}" if prefix else name)

    def own_parameters(self) -> dict[str, Parameter]:
        return {name: x for name, x in vars(self).items() if isinstance(x, Parameter)}

    def parameters(self) -> list[Parameter]:
        found = (p for _, module in self.modules() for p in module.own_parameters().values())
        return list(dict.fromkeys(found))


class Linear(Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        self.weight = Parameter(np.random.normal(0, inputs**-0.5, (inputs, outputs)).astype("f4"))
        self.bias = Parameter(np.zeros(outputs, "f4"))

    def forward(self, x: Any) -> Tensor:
        return run("linear", x, self.weight, self.bias)


class LayerNorm(Module):
    def __init__(self, width: int) -> None:
        self.weight, self.bias = Parameter(np.ones(width, "f4")), Parameter(np.zeros(width, "f4"))

    def forward(self, x: Any) -> Tensor:
        return run("layer_norm", x, self.weight, self.bias)


class Optimizer:
    """SGD; with ``momentum`` along a running sum. ``after_step`` is called when a step is done."""

    def __init__(self, parameters: Sequence[Parameter], rate: float, momentum: float = 0.0) -> None:
        self.parameters, self.rate, self.momentum = list(parameters), rate, momentum
        self.slots: list[dict[str, Any]] = [{} for _ in self.parameters]
        self.after_step: list[Callable[[], None]] = []

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        for p, g, slots in zip(self.parameters, gradients, self.slots, strict=True):
            if g is not None:
                p.values = p.values - np.asarray(self.change(g.values, slots), p.dtype)
        for call in self.after_step:
            call()

    def change(self, g: Any, slots: dict[str, Any]) -> Any:
        slots["velocity"] = self.momentum * slots.get("velocity", 0) + g
        return self.rate * slots["velocity"]


class Adam(Optimizer):
    def change(self, g: Any, slots: dict[str, Any]) -> Any:
        slots["steps"] = steps = slots.get("steps", 0) + 1
        slots["mean"] = 0.9 * slots.get("mean", 0) + 0.1 * g
        slots["square"] = 0.999 * slots.get("square", 0) + 0.001 * g * g
        mean, square = slots["mean"] / (1 - 0.9**steps), slots["square"] / (1 - 0.999**steps)
        return self.rate * mean / (np.sqrt(square) + 1e-8)
