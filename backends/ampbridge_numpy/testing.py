"""The conformance suite's view of NumPy with ``autograd``. Never uses the backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import autograd
import autograd.numpy as anp
import ml_dtypes
import numpy as np
from autograd.extend import defvjp, primitive

from ampbridge import Backend
from ampbridge.testing import Harness, attributes_of
from ampbridge_numpy import nn, optim
from ampbridge_numpy.backend import NumpyBackend


class Perceptron(nn.Module):
    """The parameters of the suite's model; what it computes stands in the harness."""

    def __init__(self, weights: Sequence[np.ndarray]) -> None:
        self.w1, self.b1, self.w2, self.b2 = map(nn.Parameter, weights)


Model: TypeAlias = Perceptron | Sequence[Any]
"""The model, or its four arrays while ``autograd`` traces them."""


class NumpyHarness(Harness):
    """Modules and optimizers of ``ampbridge_numpy``, ops of ``autograd.numpy``."""

    frameworks = ("numpy",)
    compiles = False
    stores_gradients = False
    simulated = False

    def __init__(self, tested: Backend | None = None) -> None:
        self.backend = tested or NumpyBackend()

    def array(self, values: Any, dtype: str = "float32") -> np.ndarray:
        return np.array(values).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return np.array(x)

    def dtype_of(self, x: np.ndarray) -> str:
        return x.dtype.name

    def run(self, op: str, *inputs: np.ndarray) -> np.ndarray:
        return getattr(anp, {"atan2": "arctan2"}.get(op, op))(*inputs)

    def model(self, weights: Sequence[np.ndarray]) -> Perceptron:
        return Perceptron(weights)

    def hidden(self, model: Model, x: np.ndarray) -> np.ndarray:
        w1, b1, _, _ = self._weights(model)
        return nn.relu(nn.linear(x, w1, b1))

    def forward(self, model: Model, x: np.ndarray) -> np.ndarray:
        _, _, w2, b2 = self._weights(model)
        return nn.linear(self.hidden(model, x), w2, b2)

    def _weights(self, model: Model) -> Sequence[Any]:
        if isinstance(model, Perceptron):
            return model.w1, model.b1, model.w2, model.b2
        return model

    def mean_squared_error(self, prediction: np.ndarray, target: np.ndarray) -> np.ndarray:
        return nn.mse_loss(prediction, target)

    def parameters(self, model: Perceptron) -> list[np.ndarray]:
        return model.parameters()

    def optimizer(self, model: Perceptron, kind: str, rate: float) -> optim.Optimizer:
        if kind == "adam":
            return optim.AdamW(model.parameters(), lr=rate)
        return optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    def slots(self, optimizer: optim.Optimizer) -> list[np.ndarray]:
        return [np.array(slots[name]) for slots in optimizer.state for name in sorted(slots)]

    def native_gradients(
        self, model: Perceptron, loss_fn: Any, batch: Sequence[np.ndarray], scale: Any
    ) -> list[np.ndarray]:
        def scaled_loss(weights: Sequence[Any]) -> Any:
            return scale(loss_fn(weights, *batch))

        return list(autograd.grad(scaled_loss)(model.parameters()))

    def on_backward(self, x: np.ndarray, call: Callable[[], None]) -> np.ndarray:
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

    def is_tracing(self) -> bool:
        return False

    def ambient(self) -> Mapping[str, object]:
        boxes = anp.numpy_boxes
        return attributes_of(anp, anp.linalg, anp.numpy_wrapper, boxes, boxes.ArrayBox, np, nn)
