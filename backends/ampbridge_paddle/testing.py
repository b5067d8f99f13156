"""The conformance suite's view of PaddlePaddle. Uses paddle alone, never the backend."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from ampbridge import Backend
from ampbridge_paddle.backend import PaddleBackend
from ampbridge_testing import Harness, attributes_of, contents
from ampbridge_testing.harness import LayeredModel


class Layered(LayeredModel, paddle.nn.Layer):
    """The suite's model, with its layers under names."""

    linear, layer_norm = paddle.nn.Linear, paddle.nn.LayerNorm

    def relu(self, x: Any) -> Any:
        return paddle.nn.functional.relu(x)

    def fill(self, values: Sequence[np.ndarray]) -> None:
        for parameter, value in zip(self.parameters(), values, strict=True):
            parameter.set_value(value)


class PaddleHarness(Harness):
    """PaddlePaddle on its present device; on a CPU low precision is simulated."""

    frameworks = ("paddle",)
    compiles = True
    copies = False
    stores_gradients = True
    linear_kind = "Linear"
    layered = Layered

    def __init__(self, tested: Backend | None = None) -> None:
        self.backend = tested or PaddleBackend()
        self.simulated = paddle.get_device() == "cpu"
        self.simulates, self.threads_apart = self.simulated, self.simulated
        self.has_kernels = not self.simulated

    def array(self, values: Any, dtype: str = "float32") -> paddle.Tensor:
        return paddle.to_tensor(np.array(values)).astype(dtype)

    def numpy(self, x: paddle.Tensor) -> np.ndarray:
        # Paddle's own conversion gives the bits of a bfloat16 as uint16.
        wide = x.astype("float32") if x.dtype == paddle.bfloat16 else x
        return np.array(wide.numpy())

    def run(self, op: str, *inputs: paddle.Tensor) -> paddle.Tensor:
        return getattr(paddle, op)(*inputs)

    def model(self, weights: Sequence[np.ndarray]) -> paddle.nn.Sequential:
        (into, inner), outer = weights[0].shape, weights[2].shape[1]
        linear = paddle.nn.Linear
        model = paddle.nn.Sequential(linear(into, inner), paddle.nn.ReLU(), linear(inner, outer))
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.set_value(value)
        return model

    def hidden(self, model: paddle.nn.Sequential, x: paddle.Tensor) -> paddle.Tensor:
        return model[1](model[0](x))

    def low_by_itself(self, weights: Sequence[np.ndarray], dtype: str) -> Layered | None:
        if self.simulated:
            return None  # auto_cast casts nothing on a CPU
        model = self.layered(weights)
        forward = model.forward

        def in_auto_cast(x: paddle.Tensor) -> Any:
            with paddle.amp.auto_cast(dtype=dtype):
                return forward(x)

        model.forward = in_auto_cast  # type: ignore[method-assign]
        return model

    def in_16_bits(self, weights: Sequence[np.ndarray], dtype: str) -> Layered:
        model: Layered = self.layered(weights).to(dtype=dtype)
        return model

    def scaled_by_itself(self, loss: paddle.Tensor) -> paddle.Tensor | None:
        if self.simulated:
            return None  # a GradScaler is switched off on a CPU
        # A dynamic one switches itself off unless Paddle's last auto_cast was in float16.
        scaler = paddle.amp.GradScaler(init_loss_scaling=1024.0, use_dynamic_loss_scaling=False)
        return scaler.scale(loss)

    def details(
        self, model: paddle.nn.Layer, optimizer: paddle.optimizer.Optimizer
    ) -> Mapping[str, object]:
        found = contents("optimizer", optimizer)
        for name, layer in [("", model), *model.named_sublayers()]:
            found |= contents(name, layer)
        for name, parameter in model.named_parameters():
            found[name] = self.dtype_of(parameter), parameter.stop_gradient
            found |= contents(name, parameter)
        # Paddle makes another one at each step.
        return {key: value for key, value in found.items() if key != "optimizer.helper[]"}

    def mean_squared_error(self, prediction: paddle.Tensor, target: paddle.Tensor) -> paddle.Tensor:
        return paddle.nn.functional.mse_loss(prediction, target)

    def optimizer(
        self, model: paddle.nn.Layer, kind: str, rate: float, *others: paddle.nn.Layer
    ) -> paddle.optimizer.Optimizer:
        parameters = [p for each in (model, *others) for p in each.parameters()]
        if kind == "adam":
            return paddle.optimizer.Adam(rate, parameters=parameters)
        if kind == "sgd":
            return paddle.optimizer.SGD(rate, parameters=parameters)
        return paddle.optimizer.Momentum(rate, momentum=0.9, parameters=parameters)

    def freeze(self, model: paddle.nn.Layer, optimizer: paddle.optimizer.Optimizer) -> None:
        for parameter in model.parameters():
            parameter.stop_gradient = True

    def slots(self, optimizer: paddle.optimizer.Optimizer) -> list[np.ndarray]:
        # The names hold counters of the process: by these they sort by parameter, then by slot.
        state = optimizer.state_dict()
        names = sorted(state, key=lambda name: [(len(p), p) for p in re.split(r"(\d+)", name)])
        return [self.numpy(state[name]) for name in names if hasattr(state[name], "numpy")]

    def native_gradients(
        self, model: paddle.nn.Layer, loss_fn: Any, batch: Sequence[paddle.Tensor], scale: Any
    ) -> list[paddle.Tensor]:
        model.clear_gradients()
        scale(loss_fn(model, *batch)).backward()
        return [parameter.grad for parameter in model.parameters()]

    def on_backward(self, x: paddle.Tensor, call: Callable[[], None]) -> paddle.Tensor:
        x.register_hook(lambda gradient: call())
        return x

    def is_differentiable(self, x: paddle.Tensor) -> bool:
        return not x.stop_gradient

    def is_tracing(self) -> bool:
        return not paddle.in_dynamic_mode()

    def ambient(self) -> Mapping[str, object]:
        return {
            "default dtype": paddle.get_default_dtype(),
            "gradients": paddle.is_grad_enabled(),
            **attributes_of(
                paddle, paddle._C_ops, paddle.Tensor, paddle.linalg, paddle.nn.functional
            ),
        }
