"""``Policy(masters=...)`` where parameters really are 16-bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from kept_masters import KeptMasters, policy
from paddle import nn
from paddle_reference import normal, rounded
from served_optimizers import ServedOptimizers

import ampbridge as amp
from ampbridge_paddle.testing import PaddleHarness

Tensor = Any


@pytest.mark.slow
class TestMasters(KeptMasters):
    harness = PaddleHarness()

    def refuses_others(self, chosen: amp.Policy) -> bool:
        return chosen.masters is not None  # else it is Paddle's own training

    @pytest.mark.parametrize(
        "kind", ["adamw"]
    )  # SGD's kernel takes 16-bit gradients beside a master
    def test_kahan_is_as_exact_as_float32_masters(self, kind: str) -> None:
        super().test_kahan_is_as_exact_as_float32_masters(kind)

    @pytest.mark.nightly
    @pytest.mark.search
    def test_kahan_is_within_a_unit_of_the_sum_in_float64(self) -> None:
        super().test_kahan_is_within_a_unit_of_the_sum_in_float64()

    @pytest.mark.nightly
    @pytest.mark.search
    def test_rounding_by_chance_moves_as_the_sum_in_float64_in_the_mean(self) -> None:
        super().test_rounding_by_chance_moves_as_the_sum_in_float64_in_the_mean()


class TestOptimizers(ServedOptimizers):
    pass


def in_groups(kind: Any, parameters: list[Tensor]) -> Any:
    weight, bias = parameters
    groups = [{"params": [weight], "weight_decay": 0.5}, {"params": [bias], "learning_rate": 0.25}]
    return kind(0.1, parameters=groups)


MAKE: dict[str, Callable[[list[Tensor]], Any]] = {
    "SGD": lambda own: paddle.optimizer.SGD(0.1, parameters=own, weight_decay=0.01),
    "Momentum": lambda own: paddle.optimizer.Momentum(0.1, parameters=own),
    "Adam": lambda own: paddle.optimizer.Adam(0.1, parameters=own),
    "AdamW": lambda own: paddle.optimizer.AdamW(0.1, parameters=own),
    "Adagrad": lambda own: paddle.optimizer.Adagrad(0.1, parameters=own),
    "Adadelta": lambda own: paddle.optimizer.Adadelta(0.1, parameters=own),
    "Adamax": lambda own: paddle.optimizer.Adamax(0.1, parameters=own),
    "Lamb": lambda own: paddle.optimizer.Lamb(0.1, parameters=own),
    "NAdam": lambda own: paddle.optimizer.NAdam(0.1, parameters=own),
    "RAdam": lambda own: paddle.optimizer.RAdam(0.1, parameters=own),
    "ASGD": lambda own: paddle.optimizer.ASGD(0.1, parameters=own),
    "Rprop": lambda own: paddle.optimizer.Rprop(0.1, parameters=own),
    "groups": lambda own: in_groups(paddle.optimizer.AdamW, own),
}
GRADS = [[normal(8, 6, seed=s), normal(6, seed=s + 9)] for s in range(3)]


def linear() -> nn.Layer:
    paddle.seed(0)
    return nn.Linear(8, 6)


def stepped_natively(make: Callable[[list[Tensor]], Any], grads: list[Any]) -> list[Any]:
    """What Paddle makes of float32 weights without ampbridge."""
    model = linear()
    optimizer = make(model.parameters())
    for each in grads:
        for p, grad in zip(model.parameters(), each, strict=True):
            p.grad = paddle.to_tensor(grad)
        optimizer.step()
    return [p.numpy() for p in model.parameters()]


def stepped(masters: str, make: Callable[[list[Tensor]], Any], grads: list[Any]) -> nn.Layer:
    model = linear()
    optimizer = make(model.parameters())
    amp.decorate(model, optimizer, policy(masters))
    for each in grads:
        amp.backend("paddle").step(optimizer, model.parameters(), [*map(paddle.to_tensor, each)])
        assert {p.dtype for p in model.parameters()} == {paddle.bfloat16}
    amp.undecorate(model, optimizer)
    assert type(optimizer) is type(make(model.parameters()))
    return model


@pytest.mark.parametrize("kind", MAKE)
def test_kahan_has_the_bits_of_float32_weights(kind: str) -> None:
    expected = stepped_natively(MAKE[kind], GRADS)
    found = stepped("kahan", MAKE[kind], GRADS)
    assert [p.numpy().tobytes() for p in found.parameters()] == [e.tobytes() for e in expected]


def test_stochastic_is_next_to_float32_weights() -> None:
    """Those of the first step, which starts from weights that bfloat16 holds."""
    model = linear()
    low = [rounded(p.numpy(), "bfloat16") for p in model.parameters()]
    exact = [value - 0.1 * grad for value, grad in zip(low, GRADS[0], strict=True)]
    found = stepped("stochastic", lambda own: paddle.optimizer.SGD(0.1, parameters=own), GRADS[:1])
    for p, e in zip(found.parameters(), exact, strict=True):
        assert np.array_equal(p.numpy(), rounded(p.numpy(), "bfloat16"))
        assert (np.abs(p.numpy() - e) < 2.0 ** (np.floor(np.log2(np.abs(e))) - 7)).all()
        assert not np.array_equal(p.numpy(), rounded(e, "bfloat16"))


@pytest.mark.parametrize("masters", ["kahan", "stochastic"])
def test_one_weight_at_a_time_is_float32(masters: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, update = [], paddle.optimizer.AdamW._append_optimize_op

    def noting(self: Any, *args: Any) -> Any:
        seen.append([p.dtype for p in self._parameter_list].count(paddle.float32))
        return update(self, *args)

    monkeypatch.setattr(paddle.optimizer.AdamW, "_append_optimize_op", noting)
    stepped(masters, MAKE["AdamW"], GRADS[:1])
    assert seen == [1, 1]


@pytest.mark.parametrize("masters", ["float32", "kahan"])
def test_masters_that_were_set_of_other_weights_are_dropped_with_a_warning(masters: str) -> None:
    model = linear()
    optimizer = MAKE["AdamW"](model.parameters())
    weight = model.weight.numpy()
    optimizer.set_state_dict({"master_weights": {model.weight.name: paddle.zeros([8, 6])}})
    with pytest.warns(amp.AmpBridgeWarning, match=r"of other weights .*dropped: .*\nHint: amp.dec"):
        amp.decorate(model, optimizer, policy(masters))
    amp.undecorate(model, optimizer)
    assert np.array_equal(model.weight.numpy(), weight)


@pytest.mark.parametrize("masters", ["float32", "kahan", "stochastic"])
def test_a_copy_is_refused_and_has_all_digits_inside_of_a_block(masters: str) -> None:
    model = linear()
    amp.decorate(model, MAKE["AdamW"](model.parameters()), policy(masters))
    with pytest.raises(
        amp.UnsupportedError, match=r"16-bit values alone.*\nHint: .*amp.undecorated"
    ):
        copy.deepcopy(model)
    with amp.undecorated(model):
        twin = copy.deepcopy(model)
    values = amp.backend("paddle").read_weights(model)
    for p, value in zip(twin.parameters(), values.values(), strict=True):
        assert np.array_equal(p.numpy(), value)


def test_low_slots_are_refused() -> None:
    model = linear()
    with pytest.raises(amp.UnsupportedError, match=r"slots are 'float32'.\nHint: Policy") as raised:
        amp.decorate(model, MAKE["AdamW"](model.parameters()), policy("float32", slots="bfloat16"))
    assert str(raised.value).endswith("Policy('O2', 'bfloat16')")
    assert model.weight.dtype == paddle.float32
