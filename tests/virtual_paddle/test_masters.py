"""``Policy(masters=...)`` where parameters really are 16-bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
import pytest
from kept_masters import CHOICES, KeptMasters, policy
from paddle import nn
from paddle_reference import normal, rounded
from served_optimizers import ServedOptimizers, backward, bits, lookahead, step

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


@pytest.mark.parametrize(
    "masters, expected", [("float32", 6), ("kahan", 4), ("stochastic", 2), (None, 2)]
)
def test_bytes_of_a_weight(masters: Any, expected: int) -> None:
    """The parameter's own, of what hangs on it, and of the optimizer's masters."""
    model = linear()
    optimizer = MAKE["Adam"](model.parameters())
    amp.decorate(model, optimizer, policy(masters))
    model(paddle.ones([2, model.weight.shape[0]])).mean().backward()
    optimizer.step()
    held = [*model.parameters(), *optimizer._master_weights.values()]
    held += [x for p in model.parameters() for x in vars(p).values() if paddle.is_tensor(x)]
    weights = sum(p.size for p in model.parameters())
    assert sum(x.size * x.element_size() for x in held) == expected * weights


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


# -- Paddle's own states


DROPPED = r"of other weights .*dropped: .*\nHint: amp.dec"
LOST = r"(?s)saved in float32 with the optimizer.*is lost.*Hint: Policy"
STALE = {
    "far": 0.0,
    "near": 1 + 2.0**-12,  # which rounds to what most of the weights round to
}
"""By what a weight was multiplied since its master was saved, or is the master's."""


@pytest.mark.parametrize("masters", CHOICES)
@pytest.mark.parametrize("stale", STALE)
def test_masters_that_were_set_of_other_weights_are_dropped_with_a_warning(
    stale: str, masters: Any
) -> None:
    """They are not the weights' digits, though their roundings may be the weights'."""
    model = linear()
    optimizer = MAKE["AdamW"](model.parameters())
    weight = model.weight.numpy()
    saved = paddle.to_tensor(weight * np.float32(STALE[stale]))
    optimizer.set_state_dict({"master_weights": {model.weight.name: saved}})
    with pytest.warns(amp.AmpBridgeWarning, match=DROPPED):
        amp.decorate(model, optimizer, policy(masters))
    amp.undecorate(model, optimizer)
    exact = masters in ("float32", "kahan")
    assert np.array_equal(model.weight.numpy(), weight if exact else rounded(weight, "bfloat16"))


@pytest.fixture
def named_anew() -> Iterator[None]:
    """Names are given as in a process of its own."""
    with paddle.utils.unique_name.guard():
        yield


def decorated_anew(masters: Any, kind: str = "SGD") -> tuple[nn.Layer, Any]:
    model = linear()
    return amp.decorate(model, MAKE[kind](model.parameters()), policy(masters))


def saved_states(masters: Any, kind: str = "SGD") -> list[Any]:
    """Of a model and its optimizer under ``masters``, after three steps, as Paddle reads them from a file."""
    with paddle.utils.unique_name.guard():
        model, optimizer = decorated_anew(masters, kind)
        step(model, optimizer)
        return [copy.deepcopy(each.state_dict()) for each in (model, optimizer)]


def trained_since(of_model: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value * 1.5 for name, value in of_model.items()}


@pytest.mark.usefixtures("named_anew")
@pytest.mark.parametrize("masters", CHOICES)
@pytest.mark.parametrize("steps_by", ["optimizer", "scaler"])
def test_weights_are_not_undone_by_a_state_that_is_set_after_them(
    steps_by: str, masters: Any
) -> None:
    of_model, of_optimizer = saved_states("float32")
    weights = trained_since(of_model)
    model, optimizer = decorated_anew(masters)
    model.set_state_dict(weights)
    optimizer.set_state_dict(of_optimizer)
    with pytest.warns(amp.AmpBridgeWarning, match=DROPPED):
        step_without_rate(model, optimizer, steps_by)
    for p, value in zip(model.parameters(), weights.values(), strict=True):
        assert np.array_equal(p.numpy(), value.numpy())


@pytest.mark.usefixtures("named_anew")
@pytest.mark.parametrize("masters", CHOICES)
@pytest.mark.parametrize("steps_by", ["optimizer", "scaler"])
def test_weights_that_are_set_after_a_state_count(steps_by: str, masters: Any) -> None:
    of_model, of_optimizer = saved_states("float32")
    weights = trained_since(of_model)
    model, optimizer = decorated_anew(masters)
    model.set_state_dict(of_model)
    if masters in ("float32", "kahan"):
        optimizer.set_state_dict(of_optimizer)
    else:
        with pytest.warns(amp.AmpBridgeWarning, match=LOST):
            optimizer.set_state_dict(of_optimizer)
    model.set_state_dict(weights)
    step_without_rate(model, optimizer, steps_by)
    for p, value in zip(model.parameters(), weights.values(), strict=True):
        assert np.array_equal(p.astype("bfloat16").numpy(), value.numpy())


def step_without_rate(model: nn.Layer, optimizer: Any, steps_by: str) -> None:
    """A step that writes to the weights what the masters are."""
    optimizer.set_lr(0.0)
    if steps_by == "optimizer":
        backward(model, GRADS[0])
        optimizer.step()
    else:
        amp.backend("paddle").step(
            optimizer, model.parameters(), [*map(paddle.to_tensor, GRADS[0])]
        )


@pytest.mark.usefixtures("named_anew")
@pytest.mark.parametrize("masters", ["float32", "kahan"])
@pytest.mark.parametrize("first", ["model", "optimizer"])
def test_states_that_are_set_anew_go_on_with_the_same_bits(first: str, masters: str) -> None:
    """In either order; and also where weights round to what they did, while masters have gone on."""
    states = saved_states(masters, "Momentum")
    objects = decorated_anew(masters, "Momentum")
    model, optimizer = objects
    found = []
    for _ in range(2):
        pairs = [*zip(objects, states, strict=True)]
        for each, state in pairs if first == "model" else reversed(pairs):
            each.set_state_dict(state)
        assert bits(model)[0] == states[1]["master_weights"][model.weight.name].numpy().tobytes()
        optimizer.set_lr(1e-6)
        step(model, optimizer)
        found.append(bits(model))
    assert found[0] == found[1]
    assert states[1]["master_weights"][model.weight.name].numpy().tobytes() != found[0][0]


@pytest.mark.usefixtures("named_anew")
@pytest.mark.parametrize("masters", ["float32", "kahan"])
def test_what_was_written_to_a_weight_is_in_the_state_of_its_master(masters: str) -> None:
    model, optimizer = decorated_anew(masters)
    optimizer.set_lr(1e-3)
    step(model, optimizer)
    model.weight.set_value(model.weight.clip(-0.05, 0.05))
    states = [copy.deepcopy(each.state_dict()) for each in (model, optimizer)]
    expected = bits(model)
    with paddle.utils.unique_name.guard():
        other, resumed = decorated_anew(masters)
    other.set_state_dict(states[0])
    resumed.set_state_dict(states[1])
    step_without_rate(other, resumed, "optimizer")
    assert bits(other) == expected


@pytest.mark.parametrize("multi_precision", [False, True])
def test_a_step_that_would_not_update_float32_masters_is_refused(multi_precision: bool) -> None:
    model = linear()
    amp.decorate(model, MAKE["AdamW"](model.parameters()), policy("float32"))
    other = paddle.optimizer.AdamW(
        0.1, parameters=model.parameters(), multi_precision=multi_precision
    )
    before = bits(model)
    with pytest.raises(amp.CallOrderError, match=r"and not their float32 masters.\nHint: amp.dec"):
        step(model, other)
    assert bits(model) == before
    amp.undecorate(model)
    step(model, other)
    assert bits(model) != before


def test_an_optimizer_that_keeps_no_masters_is_refused() -> None:
    model = linear()
    with pytest.raises(
        amp.UnsupportedError, match=r"LookAhead, which keeps no mas.*\nHint: paddle"
    ):
        amp.decorate(model, lookahead(model.parameters()), policy("float32"))
    assert model.weight.dtype == paddle.float32


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
