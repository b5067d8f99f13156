"""Optimizers: three steps against torch 2.13's own numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ampbridge import ArgumentError
from ampbridge_numpy import optim

GRADIENTS = ([0.5, -1.0, 0.0], [-0.25, 2.0, 1.0], [1.0, 1.0, -3.0])

# Parameters [1, -2, 0.5] after steps by GRADIENTS, and the state; printed by torch.optim.
EXPECTED: dict[str, tuple[Callable[[Any], Any], list[float], dict[str, Any]]] = {
    "plain": (lambda p: optim.SGD(p, lr=0.1), [0.8749999, -2.1999998, 0.7], {}),
    "momentum": (
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        [0.8065598, -2.1979694, 0.6072974],
        {"momentum_buffer": [1.205912470817566, 1.936674952507019, -2.0874691009521484]},
    ),
    "nesterov": (
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        [0.7058, -2.3881, 0.799],
        {"momentum_buffer": [1.1799999475479126, 1.9900000095367432, -2.0999999046325684]},
    ),
    "adamw": (
        lambda p: optim.AdamW(p, lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1),
        [0.78373, -1.9405391, 0.456511],
        {
            "step": 3,
            "exp_avg": [0.2240000069141388, 0.3920000195503235, -0.4400000274181366],
            "exp_avg_sq": [0.12587499618530273, 0.5410000085830688, 0.9900000095367432],
        },
    ),
    "adamw by default": (
        lambda p: optim.AdamW(p),
        [0.9980456, -1.9998252, 0.4996651],
        {
            "step": 3,
            "exp_avg": [0.11800000071525574, 0.19899998605251312, -0.20999999344348907],
            "exp_avg_sq": [0.0013119378127157688, 0.005994001403450966, 0.00999900046736002],
        },
    ),
    "rmsprop": (
        lambda p: optim.RMSprop(p, lr=0.1, alpha=0.5, eps=1e-3, weight_decay=0.1),
        [0.7742923, -2.0563409, 0.3585793],
        {"square_avg": [0.6468485593795776, 1.32382333278656, 4.70261287689209]},
    ),
    "rmsprop by default": (
        lambda p: optim.RMSprop(p),
        [0.8574274, -2.0305624, 0.4949158],
        {"square_avg": [0.013069000095129013, 0.059400998055934906, 0.09989999979734421]},
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_three_steps_are_torch_s(name: str) -> None:
    make, expected, state = EXPECTED[name]
    parameter = np.array([1.0, -2.0, 0.5], np.float32)
    optimizer = make([parameter])
    for gradient in GRADIENTS:
        optimizer.step([np.array(gradient, np.float32)])
    assert parameter.dtype == np.float32
    np.testing.assert_allclose(parameter, expected, rtol=3e-7, atol=1e-7)
    assert list(optimizer.state[0]) == list(state)
    for key, value in state.items():
        np.testing.assert_allclose(optimizer.state[0][key], value, rtol=3e-7)


def test_a_step_of_momentum_by_hand() -> None:
    """From 1: v = g; p = 1 - 0.5 * 2 = 0.  Then v = 0.5 * 2 + 1 = 2; p = 0 - 0.5 * 2 = -1."""
    parameter = np.ones(1, np.float32)
    optimizer = optim.SGD([parameter], lr=0.5, momentum=0.5)
    optimizer.step([np.float32([2.0])])
    assert parameter.tolist() == [0.0]
    optimizer.step([np.float32([1.0])])
    assert parameter.tolist() == [-1.0]


@pytest.mark.parametrize("name", EXPECTED)
def test_no_gradient_no_change(name: str) -> None:
    make, _, _ = EXPECTED[name]
    still, moving = np.ones(2, np.float32), np.ones(2, np.float32)
    optimizer = make([still, moving])
    optimizer.step([None, np.ones(2, np.float32)])
    assert still.tolist() == [1.0, 1.0]
    assert optimizer.state[0] == {}
    assert moving.tolist() != [1.0, 1.0]


def test_the_rate_may_change_between_steps() -> None:
    parameter = np.ones(1, np.float32)
    optimizer = optim.SGD([parameter], lr=0.5)
    optimizer.lr = 0.25
    optimizer.step([np.ones(1, np.float32)])
    assert parameter.tolist() == [0.75]


def test_gradients_are_left_as_they_are() -> None:
    for make, _, _ in EXPECTED.values():
        gradient = np.ones(2, np.float32)
        optimizer = make([np.ones(2, np.float32)])
        optimizer.step([gradient])
        optimizer.step([gradient])
        assert gradient.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda p: optim.SGD([], lr=0.1),
            "An optimizer takes a list of arrays, not an empty list.\n"
            "Hint: optim.SGD(model.parameters(), lr=0.1)",
        ),
        (
            lambda p: optim.SGD([0.5], lr=0.1),
            "An optimizer takes a list of arrays, not float.\n"
            "Hint: optim.SGD(model.parameters(), lr=0.1)",
        ),
        (
            lambda p: optim.SGD(len, lr=0.1),
            "An optimizer takes a list of arrays, not builtin_function_or_method.\n"
            "Hint: optim.SGD(model.parameters(), lr=0.1)",
        ),
        (
            lambda p: optim.SGD(p, lr="0.1"),
            "Passed lr='0.1'; allowed is a number from 0.\nHint: lr=0.1",
        ),
        (
            lambda p: optim.SGD(p, lr=-1.0),
            "Passed lr=-1.0; allowed is a number from 0.\nHint: lr=0.1",
        ),
        (
            lambda p: optim.SGD(p, lr=0.1, nesterov=True),
            "nesterov=True looks ahead along the momentum, and momentum is 0.\n"
            "Hint: optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)",
        ),
        (
            lambda p: optim.AdamW(p, betas=(0.9, 1.0)),
            "Passed betas=(0.9, 1.0); allowed are two numbers in [0, 1).\nHint: betas=(0.9, 0.999)",
        ),
        (
            lambda p: optim.RMSprop(p, alpha=1.0),
            "Passed alpha=1.0; allowed is a number in [0, 1).\nHint: alpha=0.99",
        ),
        (
            lambda p: optim.SGD(p, lr=0.1).step([]),
            "step() got 0 gradients for 1 parameters.\n"
            "Hint: loss, grads = amp.value_and_grad(loss_fn, model, x, y)",
        ),
    ],
)
def test_messages(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        call([np.ones(1, np.float32)])
    assert str(error.value) == message
