"""What others write to 16-bit weights between two steps: the float32 masters take it over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from kept_masters import policy as masters_policy

import ampbridge as amp

Tensor = Any


def clamped(parameters: list[Tensor]) -> None:
    for p in parameters:
        p.set_value(p.clip(-0.05, 0.05))


def in_place(parameters: list[Tensor]) -> None:
    with paddle.no_grad():
        for p in parameters:
            p.scale_(0.5)


def by_vector(parameters: list[Tensor]) -> None:
    vector = paddle.nn.utils.parameters_to_vector(parameters)
    paddle.nn.utils.vector_to_parameters(vector * 0.5, parameters)


def as_data(parameters: list[Tensor]) -> None:
    for p in parameters:
        p.data = p.data * 0.5


def initialised(parameters: list[Tensor]) -> None:
    paddle.nn.initializer.Constant(0.25)(parameters[0])


def loss_fn(model: Any, x: Tensor) -> Tensor:
    return model(x).square().mean()


def trained(write: Callable[[list[Tensor]], None], policy: amp.Policy) -> list[Any]:
    paddle.seed(0)
    model = paddle.nn.Linear(3, 2)
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    scaler = amp.GradScaler(16.0) if policy.dtype == "float16" else None
    step = amp.train_step(loss_fn, model, optimizer, policy=policy, scaler=scaler)
    x = paddle.to_tensor(np.random.default_rng(0).normal(size=(8, 3)).astype("float32"))
    for _ in range(4):
        step(x)
        write(list(model.parameters()))
    step(x)
    write(list(model.parameters()))
    if policy.level != "O0":
        amp.undecorate(model, optimizer)
    return [p.numpy() for p in model.parameters()]


POLICIES = [amp.Policy("O2"), amp.Policy("O2", "bfloat16"), masters_policy("kahan")]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("write", [clamped, in_place, by_vector, as_data, initialised])
def test_it_ends_where_float32_ends(
    write: Callable[[list[Tensor]], None], policy: amp.Policy
) -> None:
    found = trained(write, policy)
    for value, expected in zip(found, trained(write, amp.Policy("O0")), strict=True):
        np.testing.assert_allclose(value, expected, rtol=0.02, atol=2e-3)
