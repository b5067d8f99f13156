"""``Policy(masters=..., slots=...)`` on PaddlePaddle, where low precision is simulated."""

from __future__ import annotations

import copy
import gc
from typing import Any

import numpy as np
import paddle
import pytest
from kept_masters import KeptSlots, OneArray, policy
from own_loops import step_by
from paddle import nn
from paddle_reference import rounded
from served_optimizers import ServedOptimizers, bits, linear, lookahead, momentum, step

import ampbridge as amp
from ampbridge_paddle.model.by_chance import count_of
from ampbridge_paddle.testing import PaddleHarness

WIDTH = 4000


class TestMasters(KeptSlots, OneArray):
    harness = PaddleHarness()
    bytes_of_low_slots = 4  # 16-bit values in float32 tensors

    def moments(self, optimizer: Any) -> list[Any]:
        state = optimizer.state_dict()
        return [state[key] for key in state if "moment" in key or "velocity" in key]

    def refuses_others(self, chosen: amp.Policy) -> bool:
        return True


class TestOptimizers(ServedOptimizers):
    pass


def test_the_optimizer_of_a_copy_has_to_be_decorated_too() -> None:
    model = linear()
    amp.decorate(model, sgd(model, 0.1), policy("stochastic"))
    twin = copy.deepcopy(model)
    del model
    gc.collect()
    with pytest.raises(amp.CallOrderError, match="with which it was not decorated"):
        step(twin, sgd(twin, 0.1))


@pytest.mark.filterwarnings("ignore:Op `increment`:DeprecationWarning")  # LookAhead's
def test_an_optimizer_inside_of_a_decorated_one_steps() -> None:
    model = linear()
    before = bits(model)
    _, optimizer = amp.decorate(model, lookahead(model.parameters()), policy(None))
    step(model, optimizer)
    assert bits(model) != before
    values = [p.numpy() for p in model.parameters()]
    assert all(np.array_equal(v, rounded(v, "bfloat16")) for v in values)


@pytest.mark.parametrize("masters", ["stochastic", None])
@pytest.mark.parametrize("way", ["a part's state", "set_value", "the optimizer's state"])
def test_float32_values_that_are_written_are_told_of_at_the_next_step(
    way: str, masters: Any
) -> None:
    """Of weights and of moments; NaN is no loss."""
    model = nn.Sequential(linear())
    optimizer = momentum(model.parameters())
    exact = {name: p.numpy() for name, p in model[0].named_parameters()}
    step(model, optimizer)
    moments = copy.deepcopy(optimizer.state_dict())
    with pytest.warns(amp.AmpBridgeWarning, match="slots are float32"):
        amp.decorate(model, optimizer, policy(masters, "bfloat16"))
    model[0].bias.set_value(np.full(6, np.nan, "f"))
    step(model, optimizer)
    words = rf"weights were written in float32\. masters={masters!r} rounds them to bfloat16"
    if way == "a part's state":
        model[0].set_state_dict(exact)
    elif way == "set_value":
        model[0].weight.set_value(exact["weight"])
    else:
        words = "slots are float32. slots='bfloat16' rounds those of low parameters to bfloat16"
        optimizer.set_state_dict(moments)
    with pytest.warns(amp.AmpBridgeWarning, match=words):
        step(model, optimizer)
    step(model, optimizer)


@pytest.mark.parametrize("masters", ["float32", "stochastic"])
def test_a_model_that_was_cast_to_other_16_bits_is_refused(masters: str) -> None:
    """Its storage was float32."""
    model = linear()
    _, optimizer = amp.decorate(model, momentum(model.parameters()), policy(masters))
    model.to(dtype="bfloat16")  # .bfloat16() refuses on some CPUs
    words = r"is in paddle.bfloat16, and was in paddle.float32 when .* cast the model since"
    with pytest.raises(amp.CallOrderError, match=words):
        model(paddle.ones([1, 8]))
    amp.undecorate(model, optimizer)
    model.to(dtype="float32")
    amp.decorate(model, optimizer, policy(masters))
    step(model, optimizer)


def of_ones() -> nn.Layer:
    model = nn.Linear(1, WIDTH, bias_attr=False)
    model.weight.set_value(np.ones((1, WIDTH), np.float32))
    return model


def sgd(model: nn.Layer, rate: float) -> Any:
    return paddle.optimizer.SGD(rate, parameters=model.parameters())


@pytest.mark.parametrize("loop", ["step", "minimize", "scaler.step", "scaler.minimize"])
def test_own_loops_round_by_chance(loop: str) -> None:
    """The number below 1 is 2**-8 away: a quarter of the weights goes there by an update of 2**-10."""
    model = of_ones()
    _, optimizer = amp.decorate(model, sgd(model, 2.0**-10), policy("stochastic"))
    step_by(loop, model, optimizer, amp.GradScaler(2.0**8))
    values, counts = np.unique(model.weight.numpy(), return_counts=True)
    assert values.tolist() == [1 - 2.0**-8, 1.0]
    assert abs(counts[0] / WIDTH - 0.25) < 4 * np.sqrt(0.25 * 0.75 / WIDTH)
    amp.undecorate(model, optimizer)
    assert type(optimizer) is paddle.optimizer.SGD


def test_draws_are_apart_from_one_step_to_the_next() -> None:
    """Which weights went down in one step says nothing about the next one."""
    model = of_ones()
    _, optimizer = amp.decorate(model, sgd(model, 2.0**-9), policy("stochastic"))
    went_down = []
    for _ in range(3):
        model.weight.set_value(np.ones((1, WIDTH), np.float32))
        step_by("step", model, optimizer, amp.GradScaler())
        went_down.append(model.weight.numpy().ravel() < 1)
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert abs(np.corrcoef(went_down[first], went_down[second])[0, 1]) < 4 / np.sqrt(WIDTH)


def test_dropout_draws_as_without_it() -> None:
    found = []
    for masters in ("float32", "stochastic"):
        paddle.seed(5)
        model = of_ones()
        _, optimizer = amp.decorate(model, sgd(model, 0.1), policy(masters))
        step_by("step", model, optimizer, amp.GradScaler())
        found.append(paddle.nn.functional.dropout(paddle.ones([100])).numpy())
    assert np.array_equal(*found)


def held(model: nn.Layer, optimizer: Any) -> list[Any]:
    velocity = optimizer.state_dict()[f"{model.weight.name}_velocity_0"]
    return [model.weight.numpy(), velocity.numpy()]


def test_a_step_that_is_skipped_changes_nothing() -> None:
    found = []
    for skipping in (False, True):
        model = of_ones()
        optimizer = paddle.optimizer.Momentum(2.0**-10, 0.3, model.parameters())
        amp.decorate(model, optimizer, policy("stochastic", "bfloat16"))
        scaler = amp.GradScaler(2.0**8)
        step_by("scaler.step", model, optimizer, scaler)
        if skipping:
            before = held(model, optimizer)
            scaler.scale(model(paddle.full([1, 1], np.inf)).sum()).backward()
            assert not scaler.step(optimizer)
            scaler.update()
            optimizer.clear_grad()
            assert np.array_equal(held(model, optimizer), before)
        step_by("scaler.step", model, optimizer, scaler)
        found.append(held(model, optimizer))
    assert np.array_equal(*found)


def test_a_state_without_a_count_begins_anew() -> None:
    model = of_ones()
    _, optimizer = amp.decorate(model, sgd(model, 2.0**-10), policy("stochastic"))
    step_by("step", model, optimizer, amp.GradScaler())
    assert count_of(optimizer) == 1
    optimizer.set_state_dict({})
    assert optimizer.state_dict() == {}


@pytest.mark.parametrize("masters", ["float32", "kahan"])
def test_only_paddle_s_own_masters_have_a_rounded_rate(masters: str) -> None:
    """On a GPU the kernel of SGD takes it in the dtype of the parameter, which is float32 for the others."""
    model = of_ones()
    _, optimizer = amp.decorate(model, sgd(model, 0.001), policy(masters))
    step_by("step", model, optimizer, amp.GradScaler())
    rate = np.float32(0.001)
    expected = np.float32(1) - (rounded(rate, "bfloat16") if masters == "float32" else rate)
    assert np.array_equal(model.weight.numpy(), np.full((1, WIDTH), expected))


@pytest.mark.parametrize("kind", ["Adam", "Adamax", "Lamb", "NAdam", "RAdam"])
def test_counters_are_never_low(kind: str) -> None:
    """They are as without low slots, also in the shape of the parameter; moments are bfloat16 numbers."""
    found = []
    for slots in ("float32", "bfloat16"):
        model = nn.Linear(1, 1)  # whose bias has the shape of most counters
        optimizer = getattr(paddle.optimizer, kind)(0.001, parameters=model.parameters())
        amp.decorate(model, optimizer, policy("float32", slots))
        for _ in range(3):
            step_by("step", model, optimizer, amp.GradScaler())
        found.append(amp.backend("paddle").read_optimizer(optimizer, model).slots)
    usual, low = found
    for name, value in low.items():
        if "moment1" in name or "moment2" in name or name.endswith(("moment", "inf_norm")):
            assert np.array_equal(value, rounded(value, "bfloat16"))
        else:
            assert np.array_equal(value, usual[name])
    assert any(not np.array_equal(low[name], usual[name]) for name in low)


@pytest.mark.parametrize("loop", ["step", "minimize", "scaler.step", "scaler.minimize"])
def test_own_loops_round_slots_of_low_parameters_alone(loop: str) -> None:
    """The second gradient of 1 makes the velocity ``1 + 2**-8``, in the middle of two bfloat16 numbers."""
    model, other = of_ones(), of_ones()
    parameters = [*model.parameters(), *other.parameters()]
    optimizer = paddle.optimizer.Momentum(1e-3, 2.0**-8, parameters)
    amp.decorate(model, optimizer, policy("float32", "bfloat16"))
    scaler = amp.GradScaler(2.0**8)
    for _ in range(2):
        step_by(loop, lambda x: model(x) + other(x), optimizer, scaler)
    state = optimizer.state_dict()
    low, kept = (state[f"{p.name}_velocity_0"].numpy() for p in parameters)
    values, counts = np.unique(low, return_counts=True)
    assert values.tolist() == [1.0, 1 + 2.0**-7]
    assert abs(counts[0] / WIDTH - 0.5) < 4 * 0.5 / np.sqrt(WIDTH)
    assert np.array_equal(kept, np.full((1, WIDTH), 1 + 2.0**-8, np.float32))


def test_low_slots_of_an_optimizer_that_is_not_known_are_refused() -> None:
    model = of_ones()
    with pytest.raises(amp.UnsupportedError, match=r"What a LookAhead remembers.*\nHint: paddle"):
        amp.decorate(
            model, paddle.incubate.LookAhead(sgd(model, 0.1)), policy("float32", "bfloat16")
        )
    assert amp.backend("paddle").decoration(model, None) is None
