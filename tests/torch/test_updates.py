"""Unscale, clip, step and skip against torch's own; a skipped step changes nothing, bit by bit."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim

import ampbridge as amp
from ampbridge.adapters.backend import FINITE, INF, NAN
from ampbridge.errors import UnsupportedError
from ampbridge.scaling.step_or_skip import step_or_skip
from ampbridge_torch.step.scaling import _has_inf

Make = Callable[[Any], optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: optim.SGD(p, 0.1),
    "SGD momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9),
    "SGD foreach": lambda p: optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "SGD fused": lambda p: optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "Adam": lambda p: optim.Adam(p, 0.1),
    "Adam amsgrad": lambda p: optim.Adam(p, 0.1, amsgrad=True),
    "Adam fused": lambda p: optim.Adam(p, 0.1, fused=True),
    "AdamW foreach": lambda p: optim.AdamW(p, 0.1, foreach=True),
    "AdamW single": lambda p: optim.AdamW(p, 0.1, foreach=False),
    "AdamW fused": lambda p: optim.AdamW(p, 0.1, fused=True),
    "Adagrad": lambda p: optim.Adagrad(p, 0.1),
    "RMSprop": lambda p: optim.RMSprop(p, 0.1, momentum=0.9),
    "NAdam": lambda p: optim.NAdam(p, 0.1),
    "Rprop": lambda p: optim.Rprop(p, 0.1),
}
BAD = {"inf": (math.inf, INF), "-inf": (-math.inf, INF), "nan": (math.nan, NAN)}


def loss_fn(model: nn.Module, x: torch.Tensor, poison: torch.Tensor) -> torch.Tensor:
    return (model(x).square() * poison).mean()


def snapshot(model: nn.Module, optimizer: optim.Optimizer) -> Any:
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("first", [True, False], ids=["first step", "later step"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_changes_nothing(name: str, first: bool, kind: str, device: str) -> None:
    model = nn.Linear(3, 2).to(device)
    optimizer = OPTIMIZERS[name](model.parameters())
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1)
    step = amp.train_step(
        loss_fn, model, optimizer, scheduler=scheduler, scaler=amp.GradScaler(4.0), clip_norm=1.0
    )
    x, one = torch.randn(4, 3, device=device), torch.ones((), device=device)
    if not first:
        assert step(x, one).applied
    before, rate = snapshot(model, optimizer), scheduler.get_last_lr()
    result = step(x, one * BAD[kind][0])
    assert not result.applied
    assert result.scale == 4.0
    assert result.reason in ("inf", "nan")
    after = snapshot(model, optimizer)
    assert equal(before[0], after[0])
    if name in ("Adam fused", "AdamW fused") and first and device == "cuda":
        # Torch's kernel is called all the same and makes its slots, at zero.
        values = [v for state in after[1]["state"].values() for v in state.values()]
        assert not any(bool(v.any()) for v in values)
    else:
        assert equal(before[1], after[1])
    assert scheduler.get_last_lr() == rate
    assert step.scaler.get_scale() == 2.0
    assert step(x, one).applied


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_a_loop_by_hand(name: str, device: str) -> None:
    """Bit by bit those of torch's scaler and clipping, whose order of operations is the same."""
    model = nn.Linear(3, 2).to(device)
    by_hand = copy.deepcopy(model)
    optimizer, other = (OPTIMIZERS[name](m.parameters()) for m in (model, by_hand))
    step = amp.train_step(
        loss_fn, model, optimizer, scaler=amp.GradScaler(2.0**10, growth_interval=2), clip_norm=0.5
    )
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2)
    x, one = torch.randn(4, 3, device=device), torch.ones((), device=device)
    for poison in (1.0, 1.0, math.inf, 1.0, 1.0, 1.0):
        result = step(x, one * poison)
        with torch.autocast(device, torch.float16):
            loss = loss_fn(by_hand, x, one * poison)
        other.zero_grad()
        scaler.scale(loss.float()).backward()
        scaler.unscale_(other)
        norm = nn.utils.clip_grad_norm_(by_hand.parameters(), 0.5)
        scaler.step(other)
        scaler.update()
        assert result.grad_norm == pytest.approx(float(norm), nan_ok=True)
        assert step.scaler.get_scale() == scaler.get_scale()
    # Native CPU autocast leaves reductions in float16; everything here is in float32 but the GEMM.
    pairs = zip(model.parameters(), by_hand.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-3) for a, b in pairs)


class Backend:
    """The backend's methods on gradients."""

    unscale = staticmethod(amp.backend("torch").unscale)
    clip = staticmethod(amp.backend("torch").clip)
    clip_values = staticmethod(amp.backend("torch").clip_values)
    step_or_skip = staticmethod(partial(step_or_skip, amp.backend("torch")))


def test_unscaled_float64_stays_float64(device: str) -> None:
    values = torch.tensor([2.0, -4.0, 1 + 2.0**-40], device=device, dtype=torch.float64)
    (found,), kind = Backend.unscale([values.clone()], 8.0)
    assert found.dtype is torch.float64
    assert torch.equal(found, values / 8)
    assert int(kind) == FINITE


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("where", [0, 1, 2])
def test_what_is_not_finite_is_told_apart(kind: str, where: int, device: str) -> None:
    grads = [torch.ones(3, device=device), torch.ones(2, 2, device=device).double()]
    grads.append(torch.ones(5, device=device).half())
    grads[where].view(-1)[1] = BAD[kind][0]
    _, found = Backend.unscale(grads, 2.0)
    assert int(found) == BAD[kind][1]
    assert isinstance(found, int) == (device == "cpu")


def test_inf_wins_over_nan_of_another_dtype(device: str) -> None:
    both = torch.tensor([math.nan, math.inf, 1.0], device=device)
    nan = torch.tensor([math.nan], device=device)
    assert int(Backend.unscale([nan, both.double()], 2.0)[1]) == INF
    assert int(Backend.unscale([nan, nan.clone().double()], 2.0)[1]) == NAN


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3e38, -3e38, 0.0])
def test_inf_is_found_on_a_device_without_waiting(value: float, device: str) -> None:
    """The kernels used on a GPU also run on a CPU."""
    grads = [torch.ones(2, 2, device=device), torch.ones(3, device=device)]
    grads[1][0] = value
    assert bool(_has_inf(grads)) == math.isinf(value)
    grads[1][1] = math.nan
    assert bool(_has_inf(grads)) == math.isinf(value)


@pytest.mark.parametrize("kind", [FINITE, INF, NAN])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_was_found_may_be_a_tensor(name: str, kind: int, device: str) -> None:
    """As it is on a GPU; torch's fused kernels then skip by themselves, also on a CPU."""
    model = nn.Linear(3, 2).to(device)
    optimizer = OPTIMIZERS[name](model.parameters())
    parameters = list(model.parameters())
    grads = [torch.ones_like(p) for p in parameters]
    assert Backend.step_or_skip(optimizer, parameters, grads, None)[0]
    before = snapshot(model, optimizer)
    poisoned = [g * (1.0 if kind == FINITE else math.nan) for g in grads]
    applied, _ = Backend.step_or_skip(
        optimizer, parameters, poisoned, torch.tensor(kind, device=device)
    )
    assert bool(applied) == (kind == FINITE)
    assert equal(before, snapshot(model, optimizer)) == (kind != FINITE)
    assert not hasattr(optimizer, "found_inf")
    assert not hasattr(optimizer, "grad_scale")
    if "fused" in name:
        assert isinstance(applied, torch.Tensor)  # nobody has read it


def test_unscaling_a_sparse_gradient(device: str) -> None:
    embedding = nn.Embedding(5, 2, sparse=True).to(device)
    embedding(torch.tensor([1, 1, 3], device=device)).sum().backward()
    (grad,), found = Backend.unscale([embedding.weight.grad], 4.0)
    assert int(found) == FINITE
    expected = torch.zeros(5, 2, device=device)
    expected[1], expected[3] = 0.5, 0.25
    assert torch.equal(grad.to_dense(), expected)


@pytest.mark.parametrize("max_norm", [0.1, 1e6])
def test_clipping_is_torchs(max_norm: float, device: str) -> None:
    grads = [torch.randn(4, 3, device=device), torch.randn(7, device=device)]
    parameters = [nn.Parameter(torch.zeros_like(g)) for g in grads]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad.clone()
    norm = nn.utils.clip_grad_norm_(parameters, max_norm)
    clipped, found_norm = Backend.clip([*grads, None], max_norm)
    assert torch.equal(found_norm, norm)
    assert clipped[2] is None
    for parameter, grad in zip(parameters, clipped, strict=False):
        assert torch.equal(parameter.grad, grad)


@pytest.mark.parametrize("limit", [0.1, 1e6])
def test_clipping_by_value_is_torchs(limit: float, device: str) -> None:
    grads = [torch.randn(4, 3, device=device), torch.randn(7, device=device)]
    parameters = [nn.Parameter(torch.zeros_like(g)) for g in grads]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad.clone()
    nn.utils.clip_grad_value_(parameters, limit)
    *clipped, nothing = Backend.clip_values([*grads, None], limit)
    assert nothing is None
    assert all(torch.equal(p.grad, grad) for p, grad in zip(parameters, clipped, strict=True))


def test_clipping_each_norm_is_torchs_parameter_by_parameter(device: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(device)
    by_hand, x = copy.deepcopy(model), torch.randn(16, 4, device=device)
    optimizer, other = (optim.AdamW(each.parameters()) for each in (model, by_hand))
    step = amp.train_step(
        lambda m, x: m(x).square().mean(), model, optimizer, policy="O0", clip_each_norm=0.01
    )
    for _ in range(100):
        step(x)
        other.zero_grad()
        by_hand(x).square().mean().backward()
        for parameter in by_hand.parameters():
            nn.utils.clip_grad_norm_(parameter, 0.01)
        other.step()
    for ours, theirs in zip(model.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_stepping_leaves_the_gradients_in_place_alone(device: str) -> None:
    parameter = nn.Parameter(torch.ones(2, device=device))
    kept = parameter.grad = torch.full((2,), 100.0, device=device)
    optimizer = optim.SGD([parameter], 1.0)
    assert Backend.step_or_skip(optimizer, [parameter], [torch.ones(2, device=device)], None)[0]
    assert torch.equal(parameter.detach(), torch.zeros(2, device=device))
    assert parameter.grad is kept


def test_lbfgs_is_refused() -> None:
    model = nn.Linear(2, 1)
    message = (
        "LBFGS evaluates the loss several times a step; a training step does so once.\n"
        "Hint: with ampbridge.autocast(policy): inside of your closure, without a scaler."
    )
    with pytest.raises(UnsupportedError) as error:
        amp.train_step(loss_fn, model, optim.LBFGS(model.parameters()), policy="O1:bfloat16")
    assert str(error.value) == message


@pytest.mark.parametrize("limit", [0.01, 100.0])
@pytest.mark.parametrize("clipping", ["clip_norm", "clip_each_norm", "clip_value"])
def test_sparse_gradients_are_clipped_as_dense_ones_are(clipping: str, limit: float) -> None:
    """An index that occurs twice counts once, with the sum; torch's own function refuses them."""
    trained, norms = [], []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Embedding(8, 4, sparse=sparse)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = amp.train_step(
            lambda model, x: model(x).square().sum(),
            model,
            optimizer,
            policy="O0",
            **{clipping: limit},
        )
        norms.append(step(torch.tensor([1, 1, 5])).grad_norm)
        trained.append(model.weight.detach())
    torch.testing.assert_close(trained[0], trained[1])
    assert norms[0] == (norms[1] and pytest.approx(norms[1], rel=1e-6))


# -- hooks of the optimizer that raise


class Twice(optim.Adagrad):
    """Its step calls its parent's, which torch hooks as well."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Run:
    """A training in which an optimizer's hook raises in some steps."""

    def __init__(self, make: Any, policy: str, hook: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.optimizer = make(self.model.parameters())
        getattr(self.optimizer, f"register_step_{hook}_hook")(self.hook)
        self.raises = False
        self.scaler = amp.GradScaler(2.0**8, growth_interval=3)
        self.schedule = optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.step = amp.train_step(
            self.loss,
            self.model,
            self.optimizer,
            policy=policy,
            scaler=None if policy == "O0" else self.scaler,
            scheduler=self.schedule,
        )

    def hook(self, *_: Any) -> None:
        if self.raises:
            raise MemoryError

    @staticmethod
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).float().square().mean()

    def facts(self, x: torch.Tensor) -> tuple[Any, ...]:
        result = self.step(x)
        return result.loss, result.scale, result.step, self.schedule.get_last_lr()


HOOKED = {
    "SGD": lambda p: optim.SGD(p, 0.1, momentum=0.9),
    "AdamW, fused": lambda p: optim.AdamW(p, 1e-2, fused=True),
    "one that calls its parent's step": lambda p: Twice(p, 0.1),
}


@pytest.mark.parametrize("policy", ["O0", "O1:float16", "O2:bfloat16"])
@pytest.mark.parametrize("name", HOOKED)
def test_a_step_whose_post_hook_raises_has_happened(name: str, policy: str) -> None:
    raising, quiet = (Run(HOOKED[name], policy, "post") for _ in range(2))
    x = torch.randn(4, 3)
    for index in range(8):
        raising.raises = index % 3 == 1
        if raising.raises:
            with pytest.raises(MemoryError):
                raising.step(x)
            quiet.step(x)
        else:
            assert raising.facts(x) == quiet.facts(x)


@pytest.mark.parametrize("policy", ["O1:float16", "O2:bfloat16"])
@pytest.mark.parametrize("name", HOOKED)
def test_a_step_whose_pre_hook_raises_has_not_happened(name: str, policy: str) -> None:
    raising, quiet = (Run(HOOKED[name], policy, "pre") for _ in range(2))
    x = torch.randn(4, 3)
    for _ in range(3):
        assert raising.facts(x) == quiet.facts(x)
        raising.raises = True
        with pytest.raises(MemoryError):
            raising.step(x)
        raising.raises = False


def test_by_hand_a_step_whose_post_hook_raises_has_happened() -> None:
    run = Run(HOOKED["SGD"], "O1:float16", "post")
    x, scaler = torch.randn(4, 3), amp.GradScaler(2.0**8, growth_interval=1)
    scaler.scale(run.loss(run.model, x)).backward()
    before = run.model.weight.detach().clone()
    run.raises = True
    with pytest.raises(MemoryError):
        scaler.step(run.optimizer)
    assert not torch.equal(run.model.weight, before)
    with pytest.raises(amp.errors.CallOrderError, match="has been called already"):
        scaler.step(run.optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**9
