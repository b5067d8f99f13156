"""O2's updates against loops written by hand: float32 masters, low copies, any optimizer of torch."""

from __future__ import annotations

import copy
import gc
import io
import re
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
import torch
import torch.nn.functional as F
from by_hand import ByHand, Make, Net, batches, loss_fn, policy
from torch import Tensor, nn, optim

import ampbridge as amp
from ampbridge.errors import UnsupportedError
from ampbridge.training.decorate import _tell_of_updates_in_16_bits
from ampbridge_torch import _private
from ampbridge_torch.backend import TorchBackend
from ampbridge_torch.model import master_weights

Backend = TorchBackend()

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: optim.SGD(p, 0.1),
    "SGD momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, foreach=False),
    "SGD foreach": lambda p: optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "SGD fused": lambda p: optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "Adam": lambda p: optim.Adam(p, 1e-2, foreach=False),
    "Adam foreach": lambda p: optim.Adam(p, 1e-2, amsgrad=True, foreach=True),
    "Adam fused": lambda p: optim.Adam(p, 1e-2, fused=True),
    "AdamW": lambda p: optim.AdamW(p, 1e-2, foreach=False),
    "AdamW foreach": lambda p: optim.AdamW(p, 1e-2, foreach=True),
    "AdamW fused": lambda p: optim.AdamW(p, 1e-2, fused=True),
    "RMSprop": lambda p: optim.RMSprop(p, 1e-3, momentum=0.9, centered=True, foreach=False),
    "RMSprop foreach": lambda p: optim.RMSprop(p, 1e-3, foreach=True),
    "Adagrad": lambda p: optim.Adagrad(p, 1e-2, foreach=False),
    "Adagrad foreach": lambda p: optim.Adagrad(p, 1e-2, foreach=True),
    "Adagrad fused": lambda p: optim.Adagrad(p, 1e-2, fused=True),
    "NAdam": lambda p: optim.NAdam(p, 1e-2, foreach=False),
    "NAdam foreach": lambda p: optim.NAdam(p, 1e-2, foreach=True),
    "RAdam": lambda p: optim.RAdam(p, 1e-2),
    "Rprop": lambda p: optim.Rprop(p, 1e-2),
    "ASGD": lambda p: optim.ASGD(p, 1e-2),
    "Adadelta": lambda p: optim.Adadelta(p, 1.0),
    "Adamax": lambda p: optim.Adamax(p, 1e-2),
    "Adafactor": lambda p: optim.Adafactor(p, 1e-2),
}


def decorated(low: str, make: Make, **changes: Any) -> tuple[Net, optim.Optimizer]:
    model = Net()
    return amp.decorate(model, make(model.parameters()), policy(low, **changes))


def train(model: nn.Module, optimizer: optim.Optimizer, examples: Any) -> None:
    """A user's own loop."""
    for x, y in examples:
        optimizer.zero_grad()
        loss_fn(model, x, y).backward()
        optimizer.step()


def float32_weights(model: nn.Module, optimizer: optim.Optimizer | None) -> list[Tensor]:
    """What undecorating leaves: the masters."""
    amp.undecorate(model, optimizer)
    return [p.detach() for p in model.parameters()]


def assert_same_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is b.dtype
        assert torch.equal(a, b)


def assert_same_objects(found: list[Tensor], expected: list[Tensor]) -> None:
    assert list(map(id, found)) == list(map(id, expected))


# -- the loop by hand


def assert_bits_of_the_loop_by_hand(low: str, make: Make, **choice: Any) -> None:
    """Of a user's own loop, and of one that is resumed half way from what torch saved."""
    by_hand, examples = ByHand(low, make).train(8), list(batches(8))
    model, optimizer = decorated(low, make, **choice)
    train(model, optimizer, examples[:4])
    saved = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), saved)
    train(model, optimizer, examples[4:])

    saved.seek(0)
    weights, slots = torch.load(saved, weights_only=True)
    resumed, its_optimizer = decorated(low, make, **choice)
    resumed.load_state_dict(weights)
    its_optimizer.load_state_dict(slots)
    train(resumed, its_optimizer, examples[4:])

    assert_same_bits(list(model.parameters()), by_hand.weights)
    assert_same_bits(float32_weights(model, optimizer), by_hand.masters)
    assert_same_bits(float32_weights(resumed, its_optimizer), by_hand.masters)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_users_loops_are_bit_equal_to_one_by_hand_resumed_half_way(name: str, low: str) -> None:
    assert_bits_of_the_loop_by_hand(low, OPTIMIZERS[name])


@pytest.mark.parametrize("name", ["SGD momentum", "AdamW fused", "RMSprop foreach", "Adafactor"])
def test_train_step_is_bit_equal_to_a_loop_by_hand(name: str, low: str) -> None:
    scale = 1024.0 if low == "float16" else 1.0
    by_hand = ByHand(low, OPTIMIZERS[name], scale).train(6)
    model = Net()
    optimizer = OPTIMIZERS[name](model.parameters())
    scaler = amp.GradScaler(scale) if low == "float16" else None
    step = amp.train_step(loss_fn, model, optimizer, policy=policy(low), scaler=scaler)
    for x, y in batches(6):
        assert step(x, y).applied
    assert_same_bits(list(model.parameters()), by_hand.weights)
    assert_same_bits(float32_weights(model, optimizer), by_hand.masters)


def test_micro_batches_are_summed_in_float32(low: str) -> None:
    make = OPTIMIZERS["SGD momentum"]
    by_hand = ByHand(low, make)
    examples = list(batches(8))
    for start in (0, 4):
        parts = [by_hand.gradients(*example) for example in examples[start : start + 4]]
        total = parts[0]
        for part in parts[1:]:
            total = [a + b for a, b in zip(total, part, strict=True)]
        by_hand.step([grad / 4 for grad in total])
    model = Net()
    optimizer = make(model.parameters())
    step = amp.train_step(
        loss_fn, model, optimizer, policy=policy(low), accumulate=4, scaler=amp.GradScaler(4.0)
    )
    for example in examples:
        step(*example)
    assert_same_bits(float32_weights(model, optimizer), by_hand.masters)


# -- what masters are for


@pytest.mark.parametrize("own_loop", [True, False])
@pytest.mark.slow
def test_two_thousand_updates_under_half_a_unit_in_the_last_place(own_loop: bool) -> None:
    """At 1.0 half a unit of bfloat16 is 2**-8; each update is 1e-5, downwards 2000 times."""

    def trained(chosen: amp.Policy) -> float:
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        optimizer = optim.SGD(model.parameters(), 1e-5)
        x = torch.ones(1, 1)
        if own_loop:
            amp.decorate(model, optimizer, chosen)
            for _ in range(2000):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
        else:
            step = amp.train_step(lambda m, x: m(x).sum(), model, optimizer, policy=chosen)
            for _ in range(2000):
                step(x)
        amp.undecorate(model, optimizer)
        return float(model.weight.detach())

    in_float32 = trained(amp.Policy("O0"))
    assert in_float32 == pytest.approx(0.98, rel=1e-4)
    assert trained(policy("bfloat16")) == pytest.approx(in_float32, rel=1e-6)
    assert trained(policy("bfloat16", masters=None)) == 1.0


def test_without_masters_the_optimizer_steps_the_low_parameters(low: str) -> None:
    make = OPTIMIZERS["SGD momentum"]
    by_hand = ByHand(low, make)
    native = make(by_hand.weights)
    model, optimizer = decorated(low, make, masters=None)
    for x, y in batches(4):
        native.zero_grad()
        loss_fn(by_hand.forward, x, y).backward()
        native.step()
        train(model, optimizer, [(x, y)])
    assert_same_bits(list(model.parameters()), by_hand.weights)
    assert all(s["momentum_buffer"].dtype is p.dtype for p, s in optimizer.state.items())
    widened = [weight.detach().float() for weight in by_hand.weights]
    assert_same_bits(float32_weights(model, optimizer), widened)
    assert all(s["momentum_buffer"].dtype is torch.float32 for s in optimizer.state.values())


def test_what_masters_none_means_is_said_once_and_what_a_load_loses(
    low: str, tmp_path: Path
) -> None:
    _tell_of_updates_in_16_bits.cache_clear()
    for told in (1, 0):
        model = Net()
        optimizer = optim.Adam(model.parameters(), 1e-2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            amp.decorate(model, optimizer, policy(low, masters=None))
        words = r"masters=None on torch: .*its slots are in 16 bits.*\nHint: "
        assert [bool(re.match(words, str(each.message))) for each in caught] == [True] * told
    model = Net()
    optimizer = optim.Adam(model.parameters(), 1e-2)
    step = amp.train_step(loss_fn, model, optimizer, policy=policy(low))
    step(*next(batches(1)))
    step.save(tmp_path)
    model = Net()
    optimizer = optim.Adam(model.parameters(), 1e-2)
    amp.decorate(model, optimizer, policy(low, masters=None))
    step = amp.train_step(loss_fn, model, optimizer, policy=policy(low, masters=None))
    with (
        pytest.warns(amp.AmpBridgeWarning, match="weights were saved in float32.*masters=None"),
        pytest.warns(amp.AmpBridgeWarning, match="slots were saved in float32. masters=None"),
    ):
        step.load(tmp_path)


def test_without_masters_slots_that_were_there_become_low(low: str) -> None:
    model = Net()
    optimizer = optim.Adam(model.parameters(), 1e-2, foreach=True)
    train(model, optimizer, batches(1))
    before = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    with pytest.warns(amp.AmpBridgeWarning, match=f"slots are float32. masters=None .* to {low}"):
        amp.decorate(model, optimizer, policy(low, masters=None))
    slots = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    assert_same_bits(
        slots, [b.to(p.dtype) for b, p in zip(before, model.parameters(), strict=True)]
    )
    assert all(optimizer.state[p]["step"].dtype is torch.float32 for p in model.parameters())
    train(model, optimizer, batches(1))


# -- loss scaling


@pytest.mark.parametrize("name", ["SGD foreach", "AdamW fused", "NAdam"])
def test_our_scaler_unscales_and_clips_what_steps_the_masters(name: str, low: str) -> None:
    """Gradients that float16 could not hold unscaled, clipped through ``model.parameters()``."""
    scale, make = 2.0**14, OPTIMIZERS[name]
    by_hand = ByHand(low, make, scale)
    model, optimizer = decorated(low, make)
    scaler = amp.GradScaler(scale)
    for x, y in batches(4):
        y = y * 1e-3
        by_hand.give(by_hand.gradients(x, y))
        norm = nn.utils.clip_grad_norm_(by_hand.masters, 0.05)
        by_hand.step([master.grad for master in by_hand.masters])

        optimizer.zero_grad()
        scaler.scale(loss_fn(model, x, y)).backward()
        scaler.unscale(optimizer)
        found = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        assert scaler.step(optimizer)
        scaler.update()
        assert torch.equal(found, norm)
        assert all(p.grad.dtype is torch.float32 for p in model.parameters())
    assert_same_bits(list(model.parameters()), by_hand.weights)
    assert_same_bits(float32_weights(model, optimizer), by_hand.masters)
    assert all(p.grad_dtype is torch.float32 for p in model.parameters())


def test_after_a_scaled_step_backward_leaves_low_gradients_again(low: str) -> None:
    model, optimizer = decorated(low, OPTIMIZERS["SGD"])
    scaler = amp.GradScaler(8.0)
    for x, y in batches(2):
        optimizer.zero_grad()
        scaler.scale(loss_fn(model, x, y)).backward()
        assert model.inner.weight.grad.dtype is getattr(torch, low)
        scaler.step(optimizer)
        scaler.update()
    loss_fn(model, x, y).backward()  # added to what is there, which is in float32
    assert model.inner.weight.grad.dtype is torch.float32


def test_torchs_scaler_works_where_torch_lets_it(low: str) -> None:
    """It refuses float16 gradients; ``master_grad`` holds them in float32."""
    model = Net()
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    amp.decorate(model, optimizer, policy(low), master_grad=True)
    by_hand = ByHand(low, lambda p: optim.AdamW(p, 1e-2), 2.0**10).train(4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for x, y in batches(4):
        optimizer.zero_grad()
        scaler.scale(loss_fn(model, x, y)).backward()
        assert all(p.grad.dtype is torch.float32 for p in model.parameters())
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert_same_bits(float32_weights(model, optimizer), by_hand.masters)
    loss_fn(model, x, y).backward()
    assert all(p.grad.dtype is torch.float32 for p in model.parameters())


@pytest.mark.filterwarnings("ignore:A copy of a model at O2")
def test_gradients_are_kept_in_float32_by_master_grad_alone(low: str) -> None:
    x, y = next(batches(1))
    for master_grad in (False, True):
        model = amp.decorate(Net(), None, policy(low), master_grad=master_grad)
        for copied in (model, copy.deepcopy(model)):
            loss_fn(copied, x, y).backward()
            expected = torch.float32 if master_grad else getattr(torch, low)
            assert copied.inner.weight.grad.dtype is expected


@pytest.mark.parametrize("name", ["SGD fused", "AdamW", "Adagrad foreach"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_skipped_step_changes_nothing(name: str, bad: float, low: str) -> None:
    model, optimizer = decorated(low, OPTIMIZERS[name])
    train(model, optimizer, batches(2))
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    scaler = amp.GradScaler(8.0)
    x, y = next(batches(1))
    optimizer.zero_grad()
    scaler.scale(loss_fn(model, x, y) * bad).backward()
    assert not scaler.step(optimizer)
    scaler.update()
    step = amp.train_step(
        lambda m, x, y: loss_fn(m, x, y) * bad,
        model,
        optimizer,
        policy=policy(low),
        scaler=amp.GradScaler(),
    )
    assert not step(x, y).applied
    assert_same_content((model.state_dict(), optimizer.state_dict()), before)


def assert_same_content(found: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        assert found.dtype is expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same_content(found[key], value)
    elif isinstance(expected, (list, tuple)):
        for a, b in zip(found, expected, strict=True):
            assert_same_content(a, b)
    else:
        assert found == expected


# -- the gradients of a step


def test_gradients_are_float32_values_that_were_rounded(low: str) -> None:
    by_hand = ByHand(low, OPTIMIZERS["SGD"])
    model = amp.decorate(Net(), None, policy(low))
    x, y = next(batches(1))
    _, grads = amp.value_and_grad(loss_fn, model, x, y, policy=policy(low))
    assert_same_bits(list(grads), by_hand.gradients(x, y))
    assert all(p.grad is None for p in model.parameters())


def test_without_an_attribute_for_their_dtype_wide_gradients_are_refused(
    low: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch before 2.10; ``train_step`` needs none."""
    lookup = _private.lookup
    monkeypatch.setattr(
        _private, "lookup", lambda name: None if name == "grad_dtype" else lookup(name)
    )
    by_hand = ByHand(low, OPTIMIZERS["AdamW"], 8.0).train(2)
    model, optimizer = decorated(low, OPTIMIZERS["AdamW"])
    step = amp.train_step(loss_fn, model, optimizer, policy=policy(low), scaler=amp.GradScaler(8.0))
    for x, y in batches(2):
        step(x, y)
    assert_same_bits(list(model.parameters()), by_hand.weights)
    loss_fn(model, x, y).backward()
    with pytest.raises(UnsupportedError, match="cannot hold float32 gradients of"):
        amp.GradScaler(8.0).unscale(optimizer)
    assert model.inner.weight.grad is not None
    with pytest.raises(UnsupportedError, match=r"Hint: pip install 'torch>=2\.10'"):
        amp.decorate(other := Net(), None, policy(low), master_grad=True)
    assert other.inner.weight.dtype is torch.float32


# -- closures


@pytest.mark.parametrize("name", ["SGD momentum", "AdamW fused"])
def test_a_closure_is_evaluated_with_the_models_parameters(name: str, low: str) -> None:
    by_hand = ByHand(low, OPTIMIZERS[name]).train(3)
    model, optimizer = decorated(low, OPTIMIZERS[name])
    parameters = list(model.parameters())
    for x, y in batches(3):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            assert_same_objects(optimizer.param_groups[0]["params"], parameters)
            optimizer.zero_grad()
            loss = loss_fn(model, x, y)
            loss.backward()
            return loss

        assert optimizer.step(closure).dtype is torch.float32
    assert_same_bits(float32_weights(model, optimizer), by_hand.masters)


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs(line_search: str | None, low: str) -> None:
    def make(parameters: Any) -> optim.Optimizer:
        return optim.LBFGS(parameters, lr=0.2, max_iter=4, line_search_fn=line_search)

    x, y = next(batches(1))
    by_hand = ByHand(low, make)

    def closure_by_hand() -> Tensor:
        by_hand.round()
        by_hand.give(by_hand.gradients(x, y))
        return by_hand.loss

    model, optimizer = decorated(low, make)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_fn(model, x, y)
        loss.backward()
        return loss.detach()

    for _ in range(3):
        expected = by_hand.optimizer.step(closure_by_hand)
        assert torch.equal(optimizer.step(closure), expected)
    by_hand.round()
    assert_same_bits(list(model.parameters()), by_hand.weights)
    assert_same_bits(float32_weights(model, optimizer), by_hand.masters)


# -- parameter groups


def test_outside_of_its_methods_the_optimizer_is_the_users(low: str) -> None:
    model, optimizer = decorated(low, OPTIMIZERS["AdamW"])
    parameters = list(model.parameters())
    train(model, optimizer, batches(2))
    assert_same_objects(optimizer.param_groups[0]["params"], parameters)
    assert set(map(id, optimizer.state)) == set(map(id, parameters))
    assert all(slots["exp_avg"].dtype is torch.float32 for slots in optimizer.state.values())
    assert_same_objects(Backend.parameters(optimizer), parameters)


def test_groups_that_are_added_later_and_rate_schedules(low: str) -> None:
    def make(parameters: Any) -> optim.Optimizer:
        return optim.AdamW(list(parameters)[:2], 1e-2)

    by_hand = ByHand(low, make)
    model, optimizer = decorated(low, make)
    schedules = [optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (by_hand.optimizer, optimizer)]
    for index, (x, y) in enumerate(batches(6)):
        if index == 3:
            for o, owners in (
                (by_hand.optimizer, by_hand.masters),
                (optimizer, model.parameters()),
            ):
                o.add_param_group({"params": list(owners)[2:], "lr": 1e-3, "initial_lr": 1e-3})
            for schedule in schedules:
                schedule.base_lrs.append(1e-3)
        by_hand.step(by_hand.gradients(x, y))
        train(model, optimizer, [(x, y)])
        for schedule in schedules:
            schedule.step()
    assert optimizer.param_groups[1]["lr"] == by_hand.optimizer.param_groups[1]["lr"] < 1e-3
    assert_same_bits(float32_weights(model, optimizer), by_hand.masters)


@pytest.mark.parametrize("at_once", [True, False])
def test_two_optimizers_of_one_model(low: str, at_once: bool) -> None:
    def halves(parameters: list[nn.Parameter]) -> list[optim.Optimizer]:
        return [optim.SGD(parameters[:3], 0.1, momentum=0.9), optim.AdamW(parameters[3:], 1e-2)]

    by_hand = ByHand(low, OPTIMIZERS["SGD"], 16.0)
    model = Net()
    optimizers = halves(list(model.parameters()))
    optimizers_by_hand = halves(by_hand.masters)
    if at_once:
        found = amp.decorate(model, optimizers, policy(low))
        assert found[0] is model
        assert found[1] is optimizers
    else:
        for optimizer in optimizers:
            amp.decorate(model, optimizer, policy(low))
    scaler = amp.GradScaler(16.0)
    for x, y in batches(4):
        by_hand.give(by_hand.gradients(x, y))
        model.zero_grad()
        scaler.scale(loss_fn(model, x, y)).backward()
        for optimizer, optimizer_by_hand in zip(optimizers, optimizers_by_hand, strict=True):
            optimizer_by_hand.step()
            scaler.step(optimizer)
        scaler.update()
        by_hand.round()
    assert_same_bits(float32_weights(model, optimizers[0]), by_hand.masters)
    amp.undecorate(model, optimizers if at_once else optimizers[1])
    for optimizer in optimizers:
        assert_undecorated(optimizer)


@pytest.mark.parametrize("given", ["none", "another"])
def test_an_optimizer_that_was_not_given_to_decorate_is_refused(low: str, given: str) -> None:
    """It would update the roundings: nothing moves in bfloat16, and in float16 Adam's are NaN."""
    model = Net()
    parameters = list(model.parameters())
    exact = [p.detach().clone() for p in parameters]
    first = None if given == "none" else optim.SGD(parameters[:3], 0.1)
    amp.decorate(model, first, policy(low))
    late = optim.RMSprop(parameters[3:], 1e-3)
    before = [p.detach().clone() for p in parameters]
    scaler = amp.GradScaler(16.0)
    scaler.scale(loss_fn(model, *next(iter(batches(1))))).backward()
    expected = (
        r"The optimizer \(torch\.optim\.rmsprop\.RMSprop\) trains parameters of a model at O2 with which "
        r"it was not decorated: .*\nHint: amp\.decorate\(model, optimizer, policy\) once it is made; or "
        r"amp\.decorate\(model, \[optimizer, another\], policy\)\."
    )
    for step in (lambda: scaler.step(late), late.step):
        with pytest.raises(amp.errors.CallOrderError, match=expected):
            step()
    assert all(map(torch.equal, parameters, before))
    assert not late.state
    amp.decorate(model, late, policy(low))
    assert scaler.step(late)
    amp.undecorate(model, late)
    assert not torch.equal(parameters[3], exact[3])
    assert parameters[3].dtype is torch.float32


def test_a_step_that_is_refused_leaves_the_user_s_decoration(low: str) -> None:
    model, inside = decorated(low, lambda p: optim.SGD(p, 0.1))
    before = [p.detach().clone() for p in model.parameters()]
    around = Logging(inside)
    step = amp.train_step(loss_fn, model, around)
    with pytest.raises(UnsupportedError, match="is around a SGD"):
        step(*next(iter(batches(1))))
    assert_same_bits([p.detach() for p in model.parameters()], before)
    train(model, around, batches(2))
    by_hand = ByHand(low, lambda p: optim.SGD(p, 0.1)).train(2)
    assert_same_bits(float32_weights(model, inside), by_hand.masters)


class Logging(optim.Optimizer):
    """Steps the optimizer inside, which has the hooks."""

    def __init__(self, inside: optim.Optimizer) -> None:
        self.param_groups, self.state, self.inside = inside.param_groups, inside.state, inside

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inside.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        return self.inside.step(closure)


def test_of_several_optimizers_none_is_decorated_if_one_is_refused() -> None:
    model = Net()
    parameters = list(model.parameters())
    first, second = optim.SGD(parameters[:3], 0.1), optim.SGD(parameters[3:], 0.1)
    del second._optimizer_step_pre_hooks  # as of one around another optimizer
    with pytest.raises(UnsupportedError, match="hooks"):
        amp.decorate(model, [first, second], policy("bfloat16"))
    assert_undecorated(first)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    with pytest.raises(amp.ArgumentTypeError, match="optimizer is an optimizer of torch, not"):
        amp.decorate(model, [first, "second"], policy("bfloat16"))
    assert_undecorated(first)


def test_one_optimizer_of_two_models(low: str) -> None:
    both_by_hand = [ByHand(low, OPTIMIZERS["SGD"]) for _ in range(2)]
    joint = optim.Adam([p for by_hand in both_by_hand for p in by_hand.masters], 1e-2)
    models = [Net(), Net()]
    optimizer = optim.Adam([p for model in models for p in model.parameters()], 1e-2)
    for model in models:
        amp.decorate(model, optimizer, policy(low))
    for x, y in batches(4):
        optimizer.zero_grad()
        for index in (0, 1):
            both_by_hand[index].give(both_by_hand[index].gradients(x + index, y))
            loss_fn(models[index], x + index, y).backward()
        joint.step()
        optimizer.step()
        for by_hand in both_by_hand:
            by_hand.round()
    assert_same_bits(float32_weights(models[0], optimizer), both_by_hand[0].masters)
    assert Backend.decoration(models[1], optimizer) is not None
    assert_same_bits(float32_weights(models[1], optimizer), both_by_hand[1].masters)
    assert_undecorated(optimizer)


class StepInStep(optim.SGD):
    """As many published optimizers are written: the parent's step, and something after it."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        if self.fails:
            raise RuntimeError("out of memory")
        loss = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.mul_(1 - 1e-4)
        return loss


def test_an_optimizer_whose_step_calls_its_parents(low: str) -> None:
    optim.SGD([torch.ones(1)])  # torch hooks into the step of a class when it makes the first

    def make(parameters: Any) -> optim.Optimizer:
        return StepInStep(parameters, 0.1, momentum=0.9)

    by_hand = ByHand(low, make).train(4)
    model, optimizer = decorated(low, make)
    for x, y in batches(4):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = loss_fn(model, x, y)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert_same_bits(float32_weights(model, optimizer), by_hand.masters)


def assert_undecorated(optimizer: optim.Optimizer) -> None:
    hooks = {name: value for name, value in vars(optimizer).items() if name.endswith("_hooks")}
    assert len(hooks) == 6
    assert not any(hooks.values())
    assert vars(optimizer).keys() == vars(optim.SGD([torch.ones(1)])).keys()


# -- weights and states that others write


def test_weights_that_the_user_writes_are_taken_over(low: str) -> None:
    """Only those: the others keep what low precision cannot hold."""
    model, optimizer = decorated(low, OPTIMIZERS["SGD"])
    exact = Net().inner.weight.detach().clone()
    with torch.no_grad():
        model.inner.weight[0].fill_(3.0)
    exact[0] = 3.0
    optimizer.step()  # no gradients yet
    assert torch.equal(model.inner.weight, exact.to(getattr(torch, low)))
    with torch.no_grad():
        model.inner.weight[1].zero_()
    exact[1] = 0.0
    amp.undecorate(model, optimizer)
    assert torch.equal(model.inner.weight, exact)


def _clamped(parameters: list[Tensor]) -> None:
    for p in parameters:
        p.data.clamp_(-0.05, 0.05)


def _by_vector(parameters: list[Tensor]) -> None:
    vector = nn.utils.parameters_to_vector(parameters)
    nn.utils.vector_to_parameters(vector * 0.9, parameters)


def _merged(parameters: list[Tensor]) -> None:
    parameters[0].data += torch.full_like(parameters[0], 0.25)  # gets it, writes to it, and sets it


WRITES = {"clamped": _clamped, "by vector": _by_vector, "merged": _merged}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("then", ["undecorate", "save", "copy", "step"])
def test_what_is_written_through_data_is_taken_over(write: Any, then: str, low: str) -> None:
    """Element by element: what has the bits that it had keeps its float32 value."""
    model, optimizer = decorated(low, lambda p: optim.SGD(p, 0.1, momentum=0.9))
    train(model, optimizer, batches(3))
    exact = [torch.as_tensor(value) for value in Backend.read_weights(model).values()]
    before = [p.detach().clone() for p in model.parameters()]
    write(list(model.parameters()))
    after = [p.detach().clone() for p in model.parameters()]
    assert any(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    expected = [
        torch.where(a == b, wide, a.float())
        for b, a, wide in zip(before, after, exact, strict=True)
    ]
    found = model
    if then == "save":
        found = Net()
        found.load_state_dict(
            {n: torch.as_tensor(v) for n, v in Backend.read_weights(model).items()}
        )
    elif then == "copy":
        with pytest.warns(amp.AmpBridgeWarning, match="A copy of a model at O2"):
            found = copy.deepcopy(model)
    elif then == "step":
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        for group in optimizer.param_groups:
            group["momentum"] = 0.0
        is_wide = model.inner.weight.dtype is torch.float32  # as the vector's parts are
        told = pytest.warns(amp.AmpBridgeWarning, match="somebody has cast the model since")
        with told if is_wide else nullcontext():
            optimizer.step()
    assert_same_bits(float32_weights(found, None if found is not model else optimizer), expected)


def test_data_that_somebody_holds_is_looked_at_for_as_long(low: str) -> None:
    model, optimizer = decorated(low, lambda p: optim.SGD(p, 0.1))
    held = [p.data for p in model.parameters()]
    for factor in (0.5, 0.25):
        train(model, optimizer, batches(1))
        for data in held:
            data.mul_(factor)
    assert_same_bits(float32_weights(model, optimizer), [data.float() for data in held])


def test_a_tensor_that_became_data_is_looked_at_while_somebody_holds_it(low: str) -> None:
    model, optimizer = decorated(low, lambda p: optim.SGD(p, 0.1))
    (weight,) = (p for name, p in model.named_parameters() if name == "inner.weight")
    held = torch.zeros_like(weight)
    weight.data = held
    train(model, optimizer, batches(1))
    held.fill_(2.0)
    assert (Backend.read_weights(model)["inner.weight"] == 2.0).all()


def test_a_weight_of_another_size_is_taken_over(low: str) -> None:
    """As the embeddings of a larger vocabulary are put into a language model."""
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2))
    exact = model[0].weight.detach().clone()
    amp.decorate(model, None, policy(low))
    more = torch.ones(2, 3, dtype=model[0].weight.dtype)
    model[0].weight.data = torch.cat([model[0].weight.data, more])
    amp.undecorate(model)
    assert torch.equal(model[0].weight, torch.cat([exact, more.float()]))


def test_the_last_model_with_masters_leaves_torch_as_it_was(
    monkeypatch: pytest.MonkeyPatch, low: str
) -> None:
    gc.collect()  # models of earlier tests, whose masters hold the watch
    monkeypatch.setattr(master_weights, "_masters", WeakValueDictionary())
    monkeypatch.setattr(master_weights, "_watch", master_weights._Watch())
    if "data" in vars(nn.Parameter):
        monkeypatch.delattr(nn.Parameter, "data")
    for _ in range(2):
        models = [decorated(low, lambda p: optim.SGD(p, 0.1)) for _ in range(2)]
        for model, optimizer in models:
            assert "data" in vars(nn.Parameter)
            amp.undecorate(model, optimizer)
        assert "data" not in vars(nn.Parameter)


def test_so_does_the_last_one_that_is_dropped(monkeypatch: pytest.MonkeyPatch, low: str) -> None:
    gc.collect()  # models of earlier tests, whose masters hold the watch
    monkeypatch.setattr(master_weights, "_masters", WeakValueDictionary())
    monkeypatch.setattr(master_weights, "_watch", master_weights._Watch())
    if "data" in vars(nn.Parameter):
        monkeypatch.delattr(nn.Parameter, "data")
    decorated(low, lambda p: optim.SGD(p, 0.1))
    gc.collect()
    other = nn.Parameter(torch.ones(2))
    assert other.data.tolist() == [1.0, 1.0]
    assert "data" not in vars(nn.Parameter)
    assert other.data.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("order", ["model first", "optimizer first", "before decorating"])
@pytest.mark.parametrize("save_dtype", [None, "float32"])
def test_states_are_resumed_in_any_order(order: str, save_dtype: str | None, low: str) -> None:
    make, examples = OPTIMIZERS["Adam fused"], list(batches(6))
    by_hand = ByHand(low, make).train(6)
    model = Net()
    optimizer = make(model.parameters())
    amp.decorate(model, optimizer, policy(low), save_dtype=save_dtype)
    train(model, optimizer, examples[:3])
    weights, slots = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    resumed = Net()
    its_optimizer = make(resumed.parameters())
    if order != "before decorating":
        amp.decorate(resumed, its_optimizer, policy(low))
        train(resumed, its_optimizer, examples[:1])
    if order == "optimizer first":
        its_optimizer.load_state_dict(slots)
        resumed.load_state_dict(weights)
    else:
        resumed.load_state_dict(weights)
        its_optimizer.load_state_dict(slots)
    if order == "before decorating":
        amp.decorate(resumed, its_optimizer, policy(low))
    train(resumed, its_optimizer, examples[3:])
    assert_same_bits(float32_weights(resumed, its_optimizer), by_hand.masters)
    assert all("master_weight" not in slots for slots in its_optimizer.state.values())


def test_an_optimizer_s_state_alone_brings_the_weights_of_its_masters(low: str) -> None:
    """Before any step: what is evaluated then has them too."""
    model, optimizer = decorated(low, lambda p: optim.SGD(p, 0.1))
    train(model, optimizer, batches(2))
    slots = copy.deepcopy(optimizer.state_dict())
    resumed, its_optimizer = decorated(low, lambda p: optim.SGD(p, 0.1))
    its_optimizer.load_state_dict(slots)
    pairs = list(zip(resumed.parameters(), model.parameters(), strict=True))
    with_masters = [pair for pair in pairs if pair[0].dtype is not torch.float32]
    assert with_masters
    assert all(torch.equal(*pair) for pair in with_masters)
    held = [p for group in its_optimizer.param_groups for p in group["params"]]
    assert all(any(p is each for each in held) for p in resumed.parameters())


def test_a_float32_state_goes_on_at_o2_and_back(low: str) -> None:
    model = Net()
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    train(model, optimizer, batches(3))
    weights, slots = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    other, its_optimizer = decorated(low, lambda p: optim.AdamW(p, 1e-2))
    other.load_state_dict(weights)
    its_optimizer.load_state_dict(slots)
    amp.undecorate(other, its_optimizer)
    assert_same_content((other.state_dict(), its_optimizer.state_dict()), (weights, slots))


def test_torch_distributed_checkpoints(low: str) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    make, examples = OPTIMIZERS["AdamW"], list(batches(6))
    by_hand = ByHand(low, make).train(6)
    model, optimizer = decorated(low, make)
    train(model, optimizer, examples[:3])
    weights, slots = copy.deepcopy(get_state_dict(model, optimizer))
    resumed, its_optimizer = decorated(low, make)
    set_state_dict(resumed, its_optimizer, model_state_dict=weights, optim_state_dict=slots)
    train(resumed, its_optimizer, examples[3:])
    assert_same_bits(float32_weights(resumed, its_optimizer), by_hand.masters)


# -- errors on the way


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.filterwarnings("ignore:A copy of a model at O2")
def test_a_step_that_raises(set_to_none: bool, low: str) -> None:
    """The gradients of that step are gone; everything else goes on."""

    def make(parameters: Any) -> StepInStep:
        return StepInStep(parameters, 0.1)

    model, optimizer = decorated(low, make)
    parameters = list(model.parameters())
    x, y = next(batches(1))
    optimizer.fails = True
    loss_fn(model, x, y).backward()
    clean = [p.grad.clone() for p in parameters]
    with pytest.raises(RuntimeError, match="out of memory") as error:
        optimizer.step()
    optimizer.fails = False
    optimizer.zero_grad(set_to_none)
    loss_fn(model, x, y).backward()
    assert_same_bits([p.grad for p in parameters], clean)
    before = [p.detach().clone() for p in float32_weights(copy.deepcopy(model), None)]
    optimizer.step()
    assert_same_objects(optimizer.param_groups[0]["params"], parameters)
    for p, grad in zip(parameters, clean, strict=True):
        assert torch.equal(p.grad, grad)
    amp.undecorate(model, optimizer)
    for p, weight, grad in zip(parameters, before, clean, strict=True):
        expected = weight.add(grad.float(), alpha=-0.1).mul(1 - 1e-4)
        assert torch.equal(p, expected)
    assert error.value is not None  # its traceback kept the failed step's frames alive


def test_what_is_undecorated_after_a_step_that_raised_trains_the_model_s_own(low: str) -> None:
    model, optimizer = decorated(low, lambda p: StepInStep(p, 0.1))
    parameters = list(model.parameters())
    loss_fn(model, *next(batches(1))).backward()
    optimizer.fails = True
    with pytest.raises(RuntimeError, match="out of memory") as error:
        optimizer.step()
    amp.undecorate(model, optimizer)
    assert_same_objects(optimizer.param_groups[0]["params"], parameters)
    assert error.value is not None  # its traceback kept the failed step's frames alive


def test_a_step_of_ours_that_raises_leaves_nothing_behind(low: str) -> None:
    model, optimizer = decorated(low, lambda p: optim.SparseAdam(list(p), 1e-2))
    parameters = list(model.parameters())
    step = amp.train_step(loss_fn, model, optimizer, policy=policy(low))
    with pytest.raises(RuntimeError, match="does not support dense gradients"):
        step(*next(batches(1)))
    assert_same_objects(optimizer.param_groups[0]["params"], parameters)
    assert all(p.grad is None for p in parameters)


def test_a_closure_that_raises(low: str) -> None:
    by_hand = ByHand(low, OPTIMIZERS["SGD"]).train(1)
    model, optimizer = decorated(low, OPTIMIZERS["SGD"])

    def closure() -> Tensor:
        raise KeyError("x")

    with pytest.raises(KeyError):
        optimizer.step(closure)
    train(model, optimizer, batches(1))
    assert_same_bits(float32_weights(model, optimizer), by_hand.masters)


def test_a_state_that_does_not_fit_is_refused_by_torch(low: str) -> None:
    by_hand = ByHand(low, OPTIMIZERS["Adam"]).train(1)
    model, optimizer = decorated(low, OPTIMIZERS["Adam"])
    other = optim.Adam(Net().inner.parameters())
    with pytest.raises(ValueError, match="doesn't match the size"):
        optimizer.load_state_dict(other.state_dict())
    train(model, optimizer, batches(1))
    assert_same_bits(float32_weights(model, optimizer), by_hand.masters)


def test_sparse_gradients(low: str) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(5, 4, sparse=True)
    master = nn.Parameter(model.weight.detach().clone())
    expected = optim.SGD([master], 0.1)
    optimizer = optim.SGD(model.parameters(), 0.1)
    amp.decorate(model, optimizer, policy(low))
    index = torch.tensor([1, 3, 3])
    for _ in range(3):
        weight = nn.Parameter(master.detach().to(getattr(torch, low)))
        F.embedding(index, weight, sparse=True).float().square().sum().backward()
        master.grad = weight.grad.float()
        expected.step()
        optimizer.zero_grad()
        model(index).square().sum().backward()
        assert model.weight.grad.is_sparse
        optimizer.step()
    assert_same_bits(float32_weights(model, optimizer), [master])


class Averaging(nn.Module):
    """A student, and the average of its weights in frozen ones, as BYOL, MoCo and mean teachers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(4, 64)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.student(x) - self.teacher(x + 1)).square().mean()

    def average(self, way: str) -> None:
        for old, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            if way == "in place":
                with torch.no_grad():
                    old.mul_(0.999).add_(new, alpha=0.001)
            elif way == "data":
                old.data.mul_(0.999).add_(new.data, alpha=0.001)
            elif way == "new data":
                old.data = old.data * 0.999 + new.data * 0.001
            else:
                assert old.data.isfinite().all()  # it is only read


@pytest.mark.filterwarnings("ignore:Frozen parameters")
@pytest.mark.parametrize("how", ["undecorated", "keep"])
def test_a_frozen_average_moves_as_the_warning_says(how: str) -> None:
    moved = {}
    for level, way in (("O0", "plain"), ("O2", "plain"), ("O2", how)):
        torch.manual_seed(0)
        model = Averaging()
        before = copy.deepcopy(model.teacher.weight)
        optimizer = optim.Adam(model.student.parameters(), 1e-2)
        options: dict[str, Any] = {"keep": ["teacher"]} if way == "keep" else {}
        policy = amp.Policy("O0") if level == "O0" else amp.Policy("O2", "bfloat16", **options)
        step = amp.train_step(lambda m, x: m(x), model, optimizer, policy=policy)
        for _ in range(40):
            step(torch.ones(2, 4))
            if way == "undecorated":
                with amp.undecorated(model):
                    model.average("in place")
            else:
                model.average("in place")
        amp.undecorate(model, optimizer)
        moved[level, way] = float((model.teacher.weight - before).abs().sum().detach())
    assert moved["O2", "plain"] < 0.5 * moved["O0", "plain"]
    assert moved["O2", how] == pytest.approx(moved["O0", "plain"], rel=0.05)


@pytest.mark.parametrize("way", ["in place", "data", "new data"])
def test_an_average_in_frozen_low_parameters_is_warned_of_once(way: str) -> None:
    torch.manual_seed(0)
    model = Averaging()
    optimizer = optim.Adam(model.student.parameters(), 1e-2)
    step = amp.train_step(lambda m, x: m(x), model, optimizer, policy="O2:bfloat16")

    def train() -> None:
        for _ in range(12):
            step(torch.ones(2, 4))
            model.average(way)

    with pytest.warns(
        amp.AmpBridgeWarning, match=r"teacher\.weight(.|\n)*keep=\['teacher'\]"
    ) as said:
        train()
    assert len(said) == 1


@pytest.mark.parametrize("way", ["read", "once", "by its optimizer"])
def test_what_is_no_average_is_not_warned_of(way: str) -> None:
    """Warnings are errors here."""
    model = Averaging()
    optimizer = optim.Adam(model.student.parameters(), 1e-2)
    other = optim.Adam(model.teacher.parameters(), 1e-2)
    model, _ = amp.decorate(model, [optimizer, other], "O2:bfloat16")
    for number in range(12):
        model(torch.ones(2, 4)).backward()
        optimizer.step()
        if way == "read" or number == 1:
            model.average("read" if way == "read" else "in place")
        if way == "by its optimizer":  # of which each trains one half, in turns
            for part in (model.student, model.teacher):
                part.requires_grad_(not next(part.parameters()).requires_grad)
            optimizer, other = other, optimizer
        model.zero_grad()


def test_a_compiled_step_of_an_optimizer_without_masters_is_refused():
    model = torch.nn.Linear(4, 4)
    low = amp.Policy("O2", "bfloat16", execution="native")
    amp.decorate(model, torch.optim.SGD(model.parameters(), 0.1), policy=low)
    other = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(2, 4)).sum().backward()
    with pytest.raises(amp.CallOrderError, match="it was not decorated"):
        torch.compile(other.step, backend="eager")()


def test_a_compiled_step_of_another_s_is_not_compiled_again_for_each_optimizer_with_masters():
    low = amp.Policy("O2", "bfloat16", execution="native")

    def decorated() -> tuple[torch.nn.Module, optim.Optimizer]:
        model = torch.nn.Linear(4, 4)
        return amp.decorate(model, optim.SGD(model.parameters(), 0.1), policy=low)

    kept = [decorated()]
    model = torch.nn.Linear(4, 4)
    optimizer = optim.SGD(model.parameters(), 0.1)
    model(torch.ones(2, 4)).sum().backward()
    step = torch.compile(optimizer.step, backend="eager")
    step()
    with torch._dynamo.config.patch(error_on_recompile=True):
        kept.append(decorated())
        step()
        kept.clear()
        gc.collect()
        kept.append(decorated())
        step()


@pytest.mark.parametrize("is_decorated", [True, False])
def test_a_state_of_masters_alone_leaves_no_empty_slots(is_decorated: bool, low: str) -> None:
    """Optimizers of others make their slots for parameters that have no entry in ``state``."""
    _, saving = decorated(low, OPTIMIZERS["SGD"])
    model, optimizer = decorated(low, OPTIMIZERS["SGD"])
    if not is_decorated:
        amp.undecorate(model, optimizer)
    optimizer.load_state_dict(saving.state_dict())
    assert is_decorated or next(iter(optimizer.state.values())).keys() == {"master_weight"}
    amp.decorate(model, optimizer, policy(low))
    assert not optimizer.state
