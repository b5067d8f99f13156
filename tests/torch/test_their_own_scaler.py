"""What torch's own tests check of ``torch.amp.GradScaler`` (``test_grad_scaling_*``), of ours.

Rewritten with our names; where the check is the same, theirs runs beside ours. docs/limits.md ("Where a
loop by hand differs") and the tests at the end show the differences by design.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import ampbridge as amp

Loss = nn.MSELoss()
SKIPPED = 2  # the iteration whose gradients are made infinite


def scaler(scale: float = 128.0, **settings: Any) -> amp.GradScaler:
    return amp.GradScaler.like("torch", init_scale=scale, **settings)


def pair(make: Callable[..., optim.Optimizer], **settings: Any) -> tuple[Any, ...]:
    """Two equal models with their optimizers, the second for the loop without scaling."""
    torch.manual_seed(3)
    models = [nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    return *models, *(make(model.parameters(), lr=1.0, **settings) for model in models)


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(7)
    return [(torch.randn(8, 8), torch.randn(8, 8)) for _ in range(4)]


def iterations(scaled: bool) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Batches, and whether the step is to overflow; the control loop leaves that one out."""
    for number, (x, y) in enumerate(batches()):
        if scaled or number != SKIPPED:
            yield x, y, number == SKIPPED


def poison(model: nn.Module) -> None:
    model[1].weight.grad.fill_(math.inf)  # type: ignore[union-attr, operator]


def assert_same(one: nn.Module, other: nn.Module, optimizers: Any = (), atol: float = 1e-5) -> None:
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=1e-5)
    if optimizers:
        states = [optimizer.state_dict()["state"] for optimizer in optimizers]
        torch.testing.assert_close(states[0], states[1], atol=atol, rtol=1e-5)


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (optim.SGD, {}),
    "SGD foreach": (optim.SGD, {"foreach": True}),
    "SGD fused": (optim.SGD, {"fused": True}),
    "Adam": (optim.Adam, {}),
    "Adam foreach": (optim.Adam, {"foreach": True}),
    "Adam fused": (optim.Adam, {"fused": True}),
    "AdamW amsgrad": (optim.AdamW, {"amsgrad": True}),
}


# -- the rule, scale and unscale


def test_update_scale() -> None:
    ours, weight = scaler(4.0, backoff_factor=0.25, growth_interval=2), nn.Parameter(torch.ones(1))
    optimizer, seen = optim.SGD([weight], 0.1), []
    for value in (1.0, 1.0, math.inf):
        ours.scale((weight * value).sum()).backward()
        ours.step(optimizer)
        ours.update()
        optimizer.zero_grad()
        seen.append((ours.get_scale(), ours.state_dict()["good_steps"]))
    assert seen == [(4.0, 1), (8.0, 0), (2.0, 0)]


def test_scale_will_not_overflow() -> None:
    ours, weight = scaler(2.0**127, growth_interval=1), nn.Parameter(torch.zeros(1))
    optimizer = optim.SGD([weight], 0.1)
    ours.scale((weight * 0).sum()).backward()
    ours.step(optimizer)
    ours.update()
    assert ours.get_scale() == 2.0**127


def test_scale_of_nested_outputs() -> None:
    t = torch.full((1,), 4.0)
    a, (b, c), [d, (e, f)] = scaler(2.0).scale((t, (t, t), [t, (t, t)]))
    assert [each.item() for each in (a, b, c, d, e, f)] == [8.0] * 6


@pytest.mark.parametrize("value", [64.0, math.inf, math.nan])
def test_unscale_sparse(value: float) -> None:
    places = torch.tensor([[0, 1, 1], [2, 0, 2]])

    def sparse(values: list[float]) -> Tensor:
        return torch.sparse_coo_tensor(places, torch.tensor(values), (2, 3), check_invariants=True)

    weight = nn.Parameter(sparse([16.0, 32.0, 64.0]))
    optimizer, ours = optim.SGD([weight], 1.0), scaler(4.0)
    ours.scale(torch.ones(()))
    weight.grad = sparse([16.0, 32.0, value])
    ours.unscale(optimizer)
    assert ours.found_inf(optimizer) == (not math.isfinite(value))
    if math.isfinite(value):
        expected = sparse([4.0, 8.0, 16.0]).to_dense()
        torch.testing.assert_close(weight.grad.to_dense(), expected)


@pytest.mark.parametrize("repeated", [(1.0, 2.0), (math.inf, -math.inf)])
def test_unscale_sparse_with_repeated_places(repeated: tuple[float, float]) -> None:
    """Whose sum would be NaN, or finite where its parts are not."""
    weight, places = nn.Parameter(torch.zeros(2)), torch.tensor([[0, 0]])
    optimizer, ours = optim.SGD([weight], 1.0), scaler(4.0)
    ours.scale(torch.ones(()))
    weight.grad = torch.sparse_coo_tensor(
        places, torch.tensor(repeated), (2,), check_invariants=True
    )
    ours.unscale(optimizer)
    assert ours.found_inf(optimizer) == (repeated[0] == math.inf)


def odd_gradients() -> list[Tensor]:
    """Of every kind that one kernel cannot take with another: strides, dtypes, views."""
    wide = torch.full((8, 8), 4.0)
    return [
        torch.full((4, 4), 4.0),
        torch.full((4, 4), 4.0, dtype=torch.float64),
        torch.full((4, 4), 4.0).t(),
        wide[:, ::2].clone(memory_format=torch.preserve_format),
        torch.full((4, 4, 2, 2), 4.0).to(memory_format=torch.channels_last),
        torch.full((), 4.0),
        torch.empty((0, 4)),
    ]


@pytest.mark.parametrize("infinite", [None, 0, 1, 2, 3, 4, 5])
def test_unscale_of_all_kinds_together(infinite: int | None) -> None:
    grads = odd_gradients()
    if infinite is not None:
        grads[infinite][(-1,) * grads[infinite].ndim] = math.inf
    parameters = [nn.Parameter(torch.zeros_like(grad)) for grad in grads]
    for weight, grad in zip(parameters, grads, strict=True):
        weight.grad = grad
    optimizer, ours = optim.SGD(parameters, 1.0), scaler(4.0)
    ours.scale(torch.ones(()))
    ours.unscale(optimizer)
    assert ours.found_inf(optimizer) == (infinite is not None)
    if infinite is None:
        for weight in parameters:
            torch.testing.assert_close(weight.grad, torch.ones_like(weight))


# -- loops beside a loop without scaling


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_scaled_loop_is_the_loop_without_scaling(name: str) -> None:
    make, settings = OPTIMIZERS[name]
    model, control, mine, plain = pair(make, **settings)
    ours = scaler(growth_interval=2)
    for x, y, overflows in iterations(scaled=True):
        mine.zero_grad()
        ours.scale(Loss(model(x), y)).backward()
        if overflows:
            poison(model)
        assert bool(ours.step(mine)) is not overflows
        ours.update()
    for x, y, _ in iterations(scaled=False):
        plain.zero_grad()
        Loss(control(x), y).backward()
        plain.step()
    assert_same(model, control, (mine, plain), atol=1e-4)
    assert ours.get_scale() == 128.0  # doubled once, halved once


def test_under_autocast_beside_their_own() -> None:
    model, other, mine, native = pair(optim.SGD)
    ours, theirs = scaler(growth_interval=2), torch.amp.GradScaler("cpu", 128.0, growth_interval=2)
    for x, y, _ in iterations(scaled=True):
        for each, optimizer, scaling in ((model, mine, ours), (other, native, theirs)):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = Loss(each(x), y)
            scaling.scale(loss.float()).backward()
            scaling.step(optimizer)
            scaling.update()
        assert ours.get_scale() == theirs.get_scale()
    assert_same(model, other)


@pytest.mark.parametrize("separately", [False, True])
def test_clipping(separately: bool) -> None:
    model, control, mine, plain = pair(optim.SGD)
    ours = scaler(growth_interval=2)
    for x, y, overflows in iterations(scaled=True):
        mine.zero_grad()
        ours.scale(Loss(model(x), y)).backward()
        if overflows:
            poison(model)
        if separately:
            ours.unscale(mine)
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.2 * ours.get_scale())
        ours.step(mine)
        ours.update()
    for x, y, _ in iterations(scaled=False):
        plain.zero_grad()
        Loss(control(x), y).backward()
        nn.utils.clip_grad_norm_(control.parameters(), 0.2)
        plain.step()
    assert_same(model, control)


def test_a_gradient_penalty() -> None:
    model, control, mine, plain = pair(optim.SGD)
    ours = scaler(growth_interval=2)

    def penalized(loss: Tensor, grads: Any) -> Tensor:
        return loss + sum((g.square().sum() for g in grads), torch.zeros(())).sqrt()

    for x, y, overflows in iterations(scaled=True):
        mine.zero_grad()
        loss = Loss(model(x), y)
        grads = torch.autograd.grad(ours.scale(loss), model.parameters(), create_graph=True)
        loss = penalized(loss, [g * (1.0 / ours.get_scale()) for g in grads])
        ours.scale(loss).backward()
        if overflows:
            poison(model)
        ours.step(mine)
        ours.update()
    for x, y, _ in iterations(scaled=False):
        plain.zero_grad()
        loss = Loss(control(x), y)
        grads = torch.autograd.grad(loss, control.parameters(), create_graph=True)
        penalized(loss, grads).backward()
        plain.step()
    assert_same(model, control)


def test_accumulation() -> None:
    """The scale is called twice before a step, and gradients are averaged."""
    model, control, mine, plain = pair(optim.SGD)
    ours = scaler(growth_interval=1)
    for number, (x, y) in enumerate(batches()):
        ours.scale(Loss(model(x), y) / 2).backward()
        (Loss(control(x), y) / 2).backward()
        if number % 2:
            ours.step(mine)
            ours.update()
            plain.step()
            mine.zero_grad()
            plain.zero_grad()
    assert_same(model, control)
    assert ours.get_scale() == 512.0


@pytest.mark.parametrize("early", [False, True])
def test_several_models_losses_and_optimizers(early: bool) -> None:
    """Both losses depend on both models; the second model alone overflows, and is skipped alone."""
    first, control_1, mine_1, plain_1 = pair(optim.SGD)
    second, control_2, mine_2, plain_2 = pair(optim.Adam)
    ours = scaler(growth_interval=2)
    for number, (x, y) in enumerate(batches()):
        overflows = number == SKIPPED
        for each in (mine_1, mine_2, plain_1, plain_2):
            each.zero_grad()
        ours.scale(Loss(first(x) + 0.3 * second(x), y)).backward(retain_graph=True)
        ours.scale(Loss(0.6 * first(x) - second(x), y)).backward()
        Loss(control_1(x) + 0.3 * control_2(x), y).backward(retain_graph=True)
        Loss(0.6 * control_1(x) - control_2(x), y).backward()
        if overflows:
            poison(second)
        if early:
            ours.unscale(mine_1)
        assert [ours.step(mine_1), ours.step(mine_2)] == [True, not overflows]
        ours.update()
        plain_1.step()
        if not overflows:
            plain_2.step()
    assert_same(first, control_1, atol=1e-4)
    assert_same(second, control_2, atol=1e-4)
    assert ours.get_scale() == 128.0


def test_gradients_that_vanish_between_unscale_and_step() -> None:
    """The caller may take gradients away once they are unscaled: the optimizer steps what is there."""
    one, other = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer, ours = optim.SGD([one, other], 1.0), scaler(8.0)
    ours.scale((one * 2 + other * 3).sum()).backward()
    ours.unscale(optimizer)
    other.grad = None
    assert ours.step(optimizer)
    assert (one.item(), other.item()) == (-1.0, 1.0)


# -- state


@pytest.mark.parametrize("lazily", [False, True])
def test_state_dict(lazily: bool) -> None:
    first = scaler(3.0, growth_factor=4.0, backoff_factor=0.5, growth_interval=2)
    second = scaler(6.0, growth_factor=7.0, backoff_factor=0.75, growth_interval=1)
    if not lazily:
        second.scale(torch.ones(()))
    second.load_state_dict(first.state_dict())
    assert second.get_scale() == 3.0
    assert second.state_dict() == first.state_dict()
    assert second.config == first.config


def test_a_disabled_scaler_does_nothing() -> None:
    ours, weight = scaler(enabled=False), nn.Parameter(torch.ones(1))
    optimizer, loss = optim.SGD([weight], 1.0), torch.ones(())
    assert ours.scale(loss) is loss
    weight.grad = torch.full((1,), 0.25)
    ours.unscale(optimizer)
    assert ours.step(optimizer)
    ours.update()
    assert (weight.item(), ours.get_scale(), ours.enabled) == (0.75, 1.0, False)


def test_a_scale_of_one_s_own_in_update() -> None:
    ours, theirs = (
        scaler(64.0, growth_interval=3),
        torch.amp.GradScaler("cpu", 64.0, growth_interval=3),
    )
    weight = nn.Parameter(torch.ones(1))
    optimizer = optim.SGD([weight], 0.1)
    for new_scale in (None, 512.0, None):
        for each in (ours, theirs):
            optimizer.zero_grad()
            each.scale(weight.sum()).backward()
            each.step(optimizer)
            each.update() if new_scale is None else each.update(new_scale)
        assert ours.get_scale() == theirs.get_scale()
    assert ours.state_dict()["good_steps"] == theirs.state_dict()["_growth_tracker"]


# -- mistakes, which theirs refuses too


class Loop:
    """A scaler with a parameter, its optimizer and its loss."""

    def __init__(self, native: bool) -> None:
        self.scaler: Any = torch.amp.GradScaler("cpu") if native else amp.GradScaler()
        self.unscale = self.scaler.unscale_ if native else self.scaler.unscale
        self.weight = nn.Parameter(torch.ones(1))
        self.optimizer = optim.SGD([self.weight], 0.1)

    def backward(self) -> None:
        self.scaler.scale(self.weight.sum()).backward()

    def step(self) -> None:
        self.scaler.step(self.optimizer)


def forgets_scale(loop: Loop) -> None:
    loop.weight.sum().backward()
    loop.step()


def forgets_scale_before_unscale(loop: Loop) -> None:
    loop.weight.sum().backward()
    loop.unscale(loop.optimizer)


def forgets_backward(loop: Loop) -> None:
    loop.scaler.scale(loop.weight.sum())
    loop.step()


def steps_without_gradients_again(loop: Loop) -> None:
    loop.backward()
    loop.step()
    loop.scaler.update()
    loop.optimizer.zero_grad()
    loop.step()


def unscales_twice(loop: Loop) -> None:
    loop.backward()
    loop.unscale(loop.optimizer)
    loop.unscale(loop.optimizer)


def unscales_after_the_step(loop: Loop) -> None:
    loop.backward()
    loop.step()
    loop.unscale(loop.optimizer)


def steps_twice(loop: Loop) -> None:
    loop.backward()
    loop.step()
    loop.step()


def updates_at_once(loop: Loop) -> None:
    loop.scaler.scale(loop.weight.sum())
    loop.scaler.update()


def unscales_in_vain(loop: Loop) -> None:
    """Theirs lets this pass, and refuses the step that follows."""
    loop.scaler.scale(loop.weight.sum())
    loop.unscale(loop.optimizer)
    loop.step()


MISTAKES = [
    forgets_scale,
    forgets_scale_before_unscale,
    forgets_backward,
    steps_without_gradients_again,
    unscales_twice,
    unscales_after_the_step,
    steps_twice,
    updates_at_once,
    unscales_in_vain,
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_an_error_here_and_there(mistake: Callable[[Loop], None]) -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        mistake(Loop(native=True))
    with pytest.raises(amp.CallOrderError, match="Hint: "):
        mistake(Loop(native=False))


# -- what differs by design


def test_their_other_names_are_told_of() -> None:
    native, ours = torch.amp.GradScaler("cpu"), amp.GradScaler()
    public = {name for name in dir(native) if not name.startswith("_")}
    for name in public - set(dir(ours)):
        with pytest.raises(amp.ForeignNameError, match=rf"(?s){name}.*Hint: scaler\."):
            getattr(ours, name)
        assert not hasattr(ours, name)


@pytest.mark.parametrize("call", ["unscale", "step"])
@pytest.mark.parametrize(
    "low", [(), ("0",), ("0", "1")], ids=["no layer", "one layer", "every layer"]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float16_gradients_are_refused_where_theirs_refuses_them(
    dtype: torch.dtype, low: tuple[str, ...], call: str
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for name in low:
        model.get_submodule(name).to(dtype)
    optimizer, outcomes = optim.SGD(model.parameters(), 1e-3), []
    unscale = {torch.amp.GradScaler: "unscale_", amp.GradScaler: "unscale"}
    for each in (torch.amp.GradScaler("cpu"), scaler()):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.ones(2, 8)).float().sum()
        optimizer.zero_grad()
        each.scale(loss).backward()
        try:
            getattr(each, unscale[type(each)] if call == "unscale" else "step")(optimizer)
        except (ValueError, amp.ArgumentError) as error:
            outcomes.append(type(error))
    assert outcomes == ([ValueError, amp.ArgumentError] if low and dtype is torch.float16 else [])


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_gradients_in_16_bits_are_unscaled_in_float32(low: str) -> None:
    """Theirs refuses float16 ("Attempting to unscale FP16 gradients"); a unit below float16 is kept."""
    model, dtype = nn.Linear(2, 1, bias=False), getattr(torch, low)
    optimizer, ours = optim.SGD(model.parameters(), 1.0), scaler(2.0**16)
    amp.decorate(model, optimizer, amp.Policy("O2", low, masters=None))
    weight = model.weight
    ours.scale(torch.ones(()))
    weight.grad = torch.tensor([[2.0**-10, 1.0]], dtype=dtype)
    ours.unscale(optimizer)
    assert weight.grad.tolist() == [[2.0**-26, 2.0**-16]]


@pytest.mark.parametrize(
    ("decorated", "low"), [(True, "float16"), (True, "bfloat16"), (False, "bfloat16")]
)
def test_clipping_16_bit_gradients_acts_on_what_is_stepped(low: str, decorated: bool) -> None:
    """Against float64. The norm that was read, and clipped to, was once that of the scaled ones."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    dtype = getattr(torch, low)
    exact = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    exact.load_state_dict({k: v.to(dtype).double() for k, v in model.state_dict().items()})
    x = torch.randn(16, 8).to(dtype)
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    if decorated:
        policy = amp.Policy("O2", low, masters=None)
        model, optimizer = amp.decorate(model, optimizer, policy)
    else:
        model = model.to(dtype)
    before = [p.detach().double() for p in model.parameters()]
    exact(x.double()).square().mean().backward()
    norm = nn.utils.get_total_norm([p.grad for p in exact.parameters()])

    ours = scaler(2.0**12)
    ours.scale(model(x).float().square().mean()).backward()
    ours.unscale(optimizer)
    read = nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
    assert read.item() == pytest.approx(norm.item(), rel=0.05)
    assert ours.step(optimizer)
    moved = [p.detach().double() - b for p, b in zip(model.parameters(), before, strict=True)]
    assert nn.utils.get_total_norm(moved).item() == pytest.approx(1e-2, rel=0.15)

    optimizer.zero_grad()
    ours.update()
    ours.scale(model(x).float().square().mean()).backward()
    assert ours.step(optimizer)
    assert {p.dtype for p in model.parameters()} == {dtype}
