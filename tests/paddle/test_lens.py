"""The lens on PaddlePaddle: twelve planted faults located and cured; what it looked at, given back."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
import pytest
from given_back import X, assert_attributes_given_back, assert_given_back, every_report
from monitored import assert_monitored_alike
from planted_faults import (
    FAULTS,
    LOST,
    Fault,
    Forward,
    assert_located_and_cured,
    assert_raising_is_reported,
    assert_scale_is_found,
    assert_swallowed_is_located,
)


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


def test_an_overflow_that_is_swallowed_is_located() -> None:
    assert_swallowed_is_located(KIT)


def test_values_that_vanish_are_located_where_they_do() -> None:
    assert_located_and_cured(KIT, LOST)


def test_what_comes_before_an_exception_is_reported() -> None:
    assert_raising_is_reported(KIT)


def test_gradients_that_depend_on_the_scale_are_found() -> None:
    def forward(layer: Layer, x: paddle.Tensor) -> paddle.Tensor:
        products = paddle.matmul(x, layer.w)
        products.register_hook(lambda gradient: paddle.clip(gradient, -0.5, 0.5))
        return paddle.mean(products)

    model = KIT.layer(forward, {"w": np.eye(4, dtype=np.float32)})
    assert_scale_is_found(model, lambda m, x: m(x), "matmul", "")


class Noisy(paddle.nn.Layer):
    """Whatever a pass may change."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = paddle.nn.Linear(4, 4), paddle.nn.BatchNorm1D(4)
        self.drop = paddle.nn.Dropout(0.5)
        self.register_buffer("calls", paddle.zeros([], "int64"))
        self.register_buffer("even", paddle.to_tensor([True]))
        self.register_buffer("passing", paddle.zeros([4], "float64"), persistable=False)
        self.register_buffer("replaced", paddle.zeros([3]))

    def forward(self, x: Any) -> Any:
        self.calls.add_(paddle.ones([], "int64"))
        self.even.set_value(paddle.logical_not(self.even))
        drawn = random.random() + np.random.random()
        self.passing.set_value(self.passing.numpy() + drawn)
        self._buffers["replaced"] = self.replaced + paddle.ones([3])
        return self.drop(self.norm(self.linear(x * paddle.rand(x.shape))))


class NoisyPaddle:
    """See ``given_back.Noisy``; beside its state the gradients and the optimizer's."""

    def make(self) -> Noisy:
        paddle.seed(3)
        model = Noisy()
        self.optimizer = paddle.optimizer.Momentum(0.1, 0.9, model.parameters())
        self.train(model)
        return model

    def train(self, model: Noisy) -> None:
        self.optimizer.clear_grad()
        self.loss(model, paddle.to_tensor(X)).backward()
        self.optimizer.step()

    @staticmethod
    def loss(model: Noisy, x: Any) -> Any:
        return paddle.mean(paddle.square(model(x)))

    def state(self, model: Noisy) -> dict[str, Any]:
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        gradients = {f"{n}.grad": p.grad for n, p in model.named_parameters() if p.trainable}
        slots = {n: v for n, v in self.optimizer.state_dict().items() if hasattr(v, "numpy")}
        every = {**tensors, **gradients, **slots}
        values = {name: tensor.numpy().tobytes() for name, tensor in every.items()}
        objects = {f"{name} object": id(tensor) for name, tensor in tensors.items()}
        modes = {f"{layer.full_name()} mode": layer.training for layer in model.sublayers()}
        return values | objects | modes

    def draw(self, model: Noisy) -> list[Any]:
        drawn = paddle.rand([3]).tolist()
        self.train(model)
        return [drawn, self.loss(model, paddle.to_tensor(X)).item()]


@every_report
def test_a_look_gives_everything_back(report: str) -> None:
    assert_given_back(NoisyPaddle(), report)


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_monitored_training_is_the_same(policy: str) -> None:
    assert_monitored_alike("paddle", policy)


def test_what_forward_assigns_is_given_back() -> None:
    model = paddle.nn.Linear(4, 1)
    model.cache = [paddle.zeros([3])]
    weight, cache = model.weight, model.cache[0]

    def forward(model: paddle.nn.Layer, x: paddle.Tensor) -> paddle.Tensor:
        model.cache[0].add_(paddle.ones([3]))
        loss = paddle.mean(model(x))
        model.weight = model.create_parameter([4, 1])
        return loss

    assert_attributes_given_back(model, forward)
    assert model.weight is weight
    assert model.cache[0] is cache
    assert not cache.numpy().any()
