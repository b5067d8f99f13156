"""The conformance suite's view of NumPy with ``autograd``. Never uses the backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import autograd
import autograd.numpy as anp
import ml_dtypes
import numpy as np
from autograd.extend import defvjp, primitive

from ampbridge import Backend
from ampbridge.adapters.backend import Array
from ampbridge_numpy import nn, optim
from ampbridge_numpy.backend import NumpyBackend
from ampbridge_testing import Harness, attributes_of, contents
from ampbridge_testing.harness import LayeredModel


class Perceptron(nn.Module):
    """The suite's model, its parameters in the module itself."""

    def __init__(self, weights: Sequence[np.ndarray]) -> None:
        self.w1, self.b1, self.w2, self.b2 = map(nn.Parameter, weights)

    def hidden(self, x: Any) -> Any:
        return nn.relu(nn.linear(x, self.w1, self.b1))

    def forward(self, x: Any) -> Any:
        return nn.linear(self.hidden(x), self.w2, self.b2)


class Layered(LayeredModel, nn.Module):
    """The suite's model, of layers."""

    linear, layer_norm = nn.Linear, nn.LayerNorm

    def relu(self, x: Any) -> Any:
        return nn.relu(x)

    def fill(self, values: Sequence[np.ndarray]) -> None:
        for parameter, value in zip(self.parameters(), values, strict=True):
            parameter[...] = value


class NumpyHarness(Harness):
    """Modules and optimizers of ``ampbridge_numpy``, ops of ``autograd.numpy``."""

    frameworks = ("numpy",)
    compiles = False
    copies = True
    stores_gradients = False
    simulated = False
    has_kernels = True
    linear_kind = "Linear"
    model = Perceptron
    layered = Layered

    def __init__(self, tested: Backend | None = None) -> None:
        self.backend = tested or NumpyBackend()

    def array(self, values: Any, dtype: str = "float32") -> np.ndarray:
        return np.array(values).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return np.array(x)

    def run(self, op: str, *inputs: Array) -> Array:
        return getattr(anp, {"atan2": "arctan2"}.get(op, op))(*inputs)

    def details(self, model: nn.Module, optimizer: optim.Optimizer) -> Mapping[str, object]:
        found = contents("optimizer", optimizer)
        for name, module in model.named_modules():
            found |= contents(name, module)
        return found | {name: array.dtype.name for name, array in model.named_parameters()}

    def mean_squared_error(self, prediction: Array, target: Array) -> Array:
        return nn.mse_loss(prediction, target)

    def optimizer(
        self, model: nn.Module, kind: str, rate: float, *others: nn.Module
    ) -> optim.Optimizer:
        parameters = [p for each in (model, *others) for p in each.parameters()]
        if kind == "adam":
            return optim.AdamW(parameters, lr=rate)
        return optim.SGD(parameters, lr=rate, momentum=0.9 if kind == "momentum" else 0.0)

    def freeze(self, model: nn.Module, optimizer: optim.Optimizer) -> None:
        optimizer.parameters.clear()

    def slots(self, optimizer: optim.Optimizer) -> list[np.ndarray]:
        return [np.array(slots[name]) for slots in optimizer.state for name in sorted(slots)]

    def native_gradients(
        self, model: nn.Module, loss_fn: Any, batch: Sequence[np.ndarray], scale: Any
    ) -> list[np.ndarray]:
        arrays = model.parameters()

        def scaled_loss(values: Sequence[Any]) -> Any:
            traced = {id(array): value for array, value in zip(arrays, values, strict=True)}
            with nn.substituted(traced):
                return scale(loss_fn(model, *batch))

        return list(autograd.grad(scaled_loss)(arrays))

    def on_backward(self, x: Array, call: Callable[[], None]) -> Array:
        @primitive
        def watched(value: np.ndarray) -> np.ndarray:
            return value

        def gradient(upstream: np.ndarray) -> np.ndarray:
            call()
            return upstream

        defvjp(watched, lambda result, value: gradient)
        return watched(x)

    def is_differentiable(self, x: np.ndarray) -> bool:
        return not isinstance(x, (np.ndarray, np.generic))

    def ambient(self) -> Mapping[str, object]:
        boxes = anp.numpy_boxes
        owners = anp, anp.linalg, anp.numpy_wrapper, boxes, boxes.ArrayBox, np, nn
        return {"errors": np.geterr(), **attributes_of(*owners)}
