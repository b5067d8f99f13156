"""The conformance suite's view of Pebble. Never uses the backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pebble
from ampbridge_pebble import PebbleBackend

from ampbridge_testing import Harness, attributes_of, contents
from ampbridge_testing.harness import LayeredModel


class Perceptron(pebble.Module):
    """The suite's model, its parameters in the module itself."""

    def __init__(self, weights: Sequence[np.ndarray]) -> None:
        self.w1, self.b1, self.w2, self.b2 = (pebble.Parameter(w.copy()) for w in weights)

    def hidden(self, x: Any) -> Any:
        return pebble.run("relu", pebble.run("linear", x, self.w1, self.b1))

    def forward(self, x: Any) -> Any:
        return pebble.run("linear", self.hidden(x), self.w2, self.b2)


class Layered(LayeredModel, pebble.Module):
    """The suite's model, of layers."""

    linear, layer_norm = pebble.Linear, pebble.LayerNorm

    def relu(self, x: Any) -> Any:
        return pebble.run("relu", x)

    def fill(self, values: Sequence[np.ndarray]) -> None:
        for parameter, value in zip(self.parameters(), values, strict=True):
            parameter.values = value.copy()


class PebbleHarness(Harness):
    frameworks = ("pebble",)
    compiles = False
    copies = True
    stores_gradients = False
    simulated = False
    has_kernels = True
    simulates = False
    linear_kind = "Linear"
    model = Perceptron
    layered = Layered

    def __init__(self) -> None:
        self.backend = PebbleBackend()

    def array(self, values: Any, dtype: str = "float32") -> pebble.Tensor:
        if isinstance(values, pebble.Tensor):
            values = values.values
        wanted = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        return pebble.Tensor(np.array(values).astype(wanted))

    def numpy(self, x: pebble.Tensor) -> np.ndarray:
        return np.array(x.values)

    def run(self, op: str, *inputs: Any) -> Any:
        return pebble.run(op, *inputs)

    def details(self, model: pebble.Module, optimizer: pebble.Optimizer) -> Mapping[str, object]:
        found = contents("optimizer", optimizer)
        for name, module in model.modules():
            found |= contents(name, module)
        return found | {str(i): p.dtype.name for i, p in enumerate(model.parameters())}

    def mean_squared_error(self, prediction: Any, target: Any) -> Any:
        return pebble.run("mse_loss", prediction, target)

    def optimizer(
        self, model: pebble.Module, kind: str, rate: float, *others: pebble.Module
    ) -> pebble.Optimizer:
        parameters = [p for each in (model, *others) for p in each.parameters()]
        if kind == "adam":
            return pebble.Adam(parameters, rate)
        return pebble.Optimizer(parameters, rate, momentum=0.9 if kind == "momentum" else 0.0)

    def freeze(self, model: pebble.Module, optimizer: pebble.Optimizer) -> None:
        optimizer.parameters.clear()

    def slots(self, optimizer: pebble.Optimizer) -> list[np.ndarray]:
        return [np.array(slots[name]) for slots in optimizer.slots for name in sorted(slots)]

    def native_gradients(
        self, model: pebble.Module, loss_fn: Any, batch: Sequence[Any], scale: Any
    ) -> list[Any]:
        return pebble.gradients(scale(loss_fn(model, *batch)), model.parameters())

    def on_backward(self, x: Any, call: Callable[[], None]) -> pebble.Tensor:
        def backward(gradient: Any) -> list[Any]:
            call()
            return [gradient]

        return pebble.Tensor(x.values, [x], backward)

    def is_differentiable(self, x: Any) -> bool:
        return bool(x.parents) or isinstance(x, pebble.Parameter)

    def ambient(self) -> Mapping[str, object]:
        owners = pebble, pebble.Module, pebble.Tensor, pebble.Optimizer
        return {"errors": np.geterr(), **attributes_of(*owners)}
