"""The conformance suite's view of PaddlePaddle. Uses paddle alone, never the backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from ampbridge import Backend
from ampbridge.testing import Harness, attributes_of
from ampbridge_paddle.backend import PaddleBackend


class PaddleHarness(Harness):
    """PaddlePaddle on its present device; on a CPU low precision is simulated."""

    frameworks = ("paddle",)
    compiles = True
    stores_gradients = True

    def __init__(self, tested: Backend | None = None) -> None:
        self.backend = tested or PaddleBackend()
        self.simulated = paddle.get_device() == "cpu"

    def array(self, values: Any, dtype: str = "float32") -> paddle.Tensor:
        return paddle.to_tensor(np.array(values)).astype(dtype)

    def numpy(self, x: paddle.Tensor) -> np.ndarray:
        # Paddle's own conversion gives the bits of a bfloat16 as uint16.
        wide = x.astype("float32") if x.dtype == paddle.bfloat16 else x
        return np.array(wide.numpy())

    def dtype_of(self, x: paddle.Tensor) -> str:
        return str(x.dtype).removeprefix("paddle.")

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

    def forward(self, model: paddle.nn.Sequential, x: paddle.Tensor) -> paddle.Tensor:
        return model(x)

    def mean_squared_error(self, prediction: paddle.Tensor, target: paddle.Tensor) -> paddle.Tensor:
        return paddle.nn.functional.mse_loss(prediction, target)

    def parameters(self, model: paddle.nn.Sequential) -> list[paddle.Tensor]:
        return model.parameters()

    def optimizer(
        self, model: paddle.nn.Sequential, kind: str, rate: float
    ) -> paddle.optimizer.Optimizer:
        if kind == "adam":
            return paddle.optimizer.Adam(rate, parameters=model.parameters())
        return paddle.optimizer.Momentum(rate, momentum=0.9, parameters=model.parameters())

    def slots(self, optimizer: paddle.optimizer.Optimizer) -> list[np.ndarray]:
        # The names end in counters of the process, so that they sort by parameter, then by slot.
        state = optimizer.state_dict()
        return [self.numpy(state[name]) for name in sorted(state) if hasattr(state[name], "numpy")]

    def native_gradients(
        self, model: paddle.nn.Sequential, loss_fn: Any, batch: Sequence[paddle.Tensor], scale: Any
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
            **attributes_of(
                paddle, paddle._C_ops, paddle.Tensor, paddle.linalg, paddle.nn.functional
            ),
        }
