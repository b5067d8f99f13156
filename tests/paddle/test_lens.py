"""The lens on PaddlePaddle: twelve planted faults located and cured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
import pytest
from planted_faults import FAULTS, Fault, Forward, assert_located_and_cured


class Layer(paddle.nn.Layer):
    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.run = forward

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


class PaddleKit:
    """Paddle's ops, looked up when they are called, and layers."""

    def __getattr__(self, op: str) -> Any:
        return getattr(paddle, op)

    @staticmethod
    def layer(
        forward: Forward, weights: Mapping[str, np.ndarray] = {}, parts: Mapping[str, Any] = {}
    ) -> Layer:
        layer = Layer(forward)
        for name, values in weights.items():
            initial = paddle.nn.initializer.Assign(values)
            parameter = layer.create_parameter(values.shape, default_initializer=initial)
            layer.add_parameter(name, parameter)
        for name, part in parts.items():
            layer.add_sublayer(name, part)
        return layer

    @staticmethod
    def sum(x: Any, axis: int | None = None) -> Any:
        return paddle.sum(x, axis=axis, keepdim=axis is not None)

    @staticmethod
    def mean(x: Any, axis: int | None = None) -> Any:
        return paddle.mean(x, axis=axis, keepdim=axis is not None)

    @staticmethod
    def transpose(x: Any) -> Any:
        return paddle.transpose(x, [1, 0])


KIT = PaddleKit()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_located_and_cured(fault: Fault) -> None:
    assert_located_and_cured(KIT, fault)
