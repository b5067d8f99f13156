"""Optimizers of a model with ``Policy(masters=..., slots=...)``, on a CPU and where there are kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import paddle
import pytest
from kept_masters import policy
from paddle import nn
from paddle_reference import normal, rounded

import ampbridge as amp
from ampbridge_paddle.model.by_chance import count_of

GRADS = [[normal(8, 6, seed=s), normal(6, seed=s + 9)] for s in range(3)]


def linear() -> nn.Layer:
    paddle.seed(0)
    return nn.Linear(8, 6)


def momentum(own: Any) -> Any:
    return paddle.optimizer.Momentum(0.1, parameters=own)


def backward(model: nn.Layer, grads: Any) -> None:
    for p, grad in zip(model.parameters(), grads, strict=True):
        p.grad = paddle.to_tensor(grad).astype(p.dtype)


def step(model: nn.Layer, optimizer: Any) -> None:
    for grads in GRADS:
        backward(model, grads)
        optimizer.step()


def bits(model: nn.Layer) -> list[bytes]:
    return [*map(bytes, amp.backend("paddle").read_weights(model).values())]


def lookahead(own: Any) -> Any:
    return paddle.incubate.LookAhead(paddle.optimizer.SGD(0.1, parameters=own))


def lbfgs(own: Any) -> Any:
    return paddle.optimizer.LBFGS(0.1, parameters=own)


def step_by_closure(model: nn.Layer, optimizer: Any) -> None:
    def closure() -> Any:
        optimizer.clear_grad()
        loss = model(paddle.ones([1, 8])).sum()
        loss.backward()
        return loss

    optimizer.step(closure)


OTHERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda own: paddle.optimizer.SGD(0.1, parameters=own),
    "AdamW": lambda own: paddle.optimizer.AdamW(0.1, parameters=own),
    "groups": lambda own: paddle.optimizer.AdamW(0.1, parameters=[{"params": own}]),
    "LookAhead": lookahead,
    "LBFGS": lbfgs,
}


class ServedOptimizers:
    @pytest.mark.parametrize("masters", ["float32", "kahan", "stochastic"])
    def test_after_a_block_undecorated_the_optimizer_is_the_model_s_again(
        self, masters: str
    ) -> None:
        model = linear()
        _, optimizer = amp.decorate(model, OTHERS["SGD"](model.parameters()), policy(masters))
        kind = type(optimizer)
        with amp.undecorated(model):
            assert type(model) is nn.Linear
        assert type(optimizer) is kind
        assert amp.backend("paddle").decoration(model, optimizer) is not None

    # -- others

    @pytest.mark.filterwarnings("ignore:Op `increment`:DeprecationWarning")  # LookAhead's
    @pytest.mark.filterwarnings("ignore:To copy construct from a tensor")  # that of LBFGS
    @pytest.mark.parametrize("name", OTHERS)
    def test_a_step_of_one_that_is_not_decorated_is_refused(self, name: str) -> None:
        """It changes nothing, and says so until the model is undecorated."""
        model = linear()
        amp.decorate(model, momentum(model.parameters()), policy("stochastic"))
        other, before = OTHERS[name](model.parameters()), bits(model)
        by = step_by_closure if name == "LBFGS" else step
        with pytest.raises(amp.CallOrderError, match="with which it was not decorated"):
            by(model, other)
        if name in ("SGD", "AdamW", "LookAhead"):
            with pytest.raises(amp.CallOrderError, match="with which it was not decorated"):
                other.minimize(model(paddle.ones([1, 8])).sum())
        assert bits(model) == before
        amp.undecorate(model)
        by(model, other)
        assert bits(model) != before

    def test_they_step_as_ever_once_the_model_is_gone(self) -> None:
        gc.collect()  # models of earlier tests
        update = paddle.optimizer.Optimizer._create_optimization_pass
        model, other = linear(), linear()
        amp.decorate(model, momentum(model.parameters()), policy("stochastic"))
        assert paddle.optimizer.Optimizer._create_optimization_pass is not update
        step(other, momentum(other.parameters()))
        del model
        gc.collect()
        assert paddle.optimizer.Optimizer._create_optimization_pass is update

    @pytest.mark.parametrize("masters", ["float32", "kahan", "stochastic"])
    def test_two_that_are_decorated_take_turns(self, masters: str) -> None:
        model = linear()
        optimizers = [OTHERS[name](model.parameters()) for name in ("SGD", "AdamW")]
        amp.decorate(model, optimizers, policy(masters))
        for optimizer in optimizers:
            step(model, optimizer)
        amp.undecorate(model)
        assert [type(each) for each in optimizers] == [paddle.optimizer.SGD, paddle.optimizer.AdamW]
        assert [each._master_weights for each in optimizers] == [{}, {}]
        assert {p.dtype for p in model.parameters()} == {paddle.float32}

    @pytest.mark.parametrize("masters", ["kahan", "stochastic"])
    @pytest.mark.parametrize(
        "make, named",
        [
            (lookahead, "LookAhead"),
            (lbfgs, "LBFGS"),
            (
                lambda own: paddle.optimizer.Adam(parameters=own, use_multi_tensor=True),
                "Adam",
            ),
        ],
        ids=["LookAhead", "LBFGS", "use_multi_tensor"],
    )
    def test_those_that_update_all_at_once_are_refused(
        self, masters: str, make: Callable[..., Any], named: str
    ) -> None:
        model = linear()
        with pytest.raises(amp.UnsupportedError, match=f"this {named} does not.\nHint: paddle"):
            amp.decorate(model, make(model.parameters()), policy(masters))
        assert model.weight.dtype == paddle.float32
        assert type(model) is nn.Linear

    # -- Paddle's own states

    @pytest.mark.parametrize("masters", ["float32", "kahan", "stochastic"])
    @pytest.mark.parametrize("decorated", ["first", "last"])
    def test_paddle_s_own_files_go_on_with_the_same_bits(
        self, masters: str, decorated: str, tmp_path: Path
    ) -> None:
        """Also where both are loaded before they are decorated: then it is the weights in float32."""
        path, save_dtype = str(tmp_path / "states"), None if decorated == "first" else "float32"
        with paddle.utils.unique_name.guard():  # as in a process of its own
            model = linear()
            optimizer = momentum(model.parameters())
            amp.decorate(model, optimizer, policy(masters), save_dtype=save_dtype)
            step(model, optimizer)
        paddle.save([model.state_dict(), optimizer.state_dict()], path)
        step(model, optimizer)
        with paddle.utils.unique_name.guard():
            other = linear()
            resumed = momentum(other.parameters())
            if decorated == "first":
                amp.decorate(other, resumed, policy(masters))
            of_model, of_optimizer = paddle.load(path)
            other.set_state_dict(of_model)
            resumed.set_state_dict(of_optimizer)
            if decorated == "last":
                amp.decorate(other, resumed, policy(masters))
            step(other, resumed)
        assert bits(other) == bits(model)
        assert count_of(resumed) == count_of(optimizer) == (12 if masters == "stochastic" else 0)
        amp.backend("paddle").read_optimizer(resumed, other)  # nothing is left of what was set

    @pytest.mark.parametrize("masters", ["kahan", "stochastic", None])
    def test_float32_weights_of_a_state_are_rounded_with_a_warning(self, masters: Any) -> None:
        """Where there is no master; weights that are 16-bit numbers already lose nothing."""
        model = linear()
        weights = {name: p.numpy() for name, p in model.named_parameters()}
        amp.decorate(model, momentum(model.parameters()), policy(masters))
        low = {name: rounded(value, "bfloat16") for name, value in weights.items()}
        model.set_state_dict(low)
        words = rf"weights were saved in float32. masters={masters!r} rounds them to bfloat16"
        told = pytest.warns(amp.AmpBridgeWarning, match=words)
        with nullcontext() if masters == "kahan" else told:
            model.set_state_dict(weights)
        expected = weights if masters == "kahan" else low
        assert bits(model) == [value.tobytes() for value in expected.values()]
