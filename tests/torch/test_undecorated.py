"""Weights looked at from outside of a step: averages, exports, and what an optimizer does by itself."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import Net, batches, loss_fn, policy
from torch import Tensor, nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import ampbridge as amp
from ampbridge_torch.backend import TorchBackend

DECAY = 0.999
UNSCALED = amp.GradScaler(1.0, dynamic=False)


def masters(model: nn.Module) -> list[Tensor]:
    values = TorchBackend().read_weights(model)
    return [torch.from_numpy(values[name]) for name, _ in model.named_parameters()]


def training(low: str, level: str = "O2") -> tuple[Net, optim.Optimizer, amp.TrainStep]:
    """At a rate whose updates bfloat16 would swallow."""
    model = Net()
    optimizer = optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    chosen = policy(low).replace(level=level)
    return (
        model,
        optimizer,
        amp.train_step(loss_fn, model, optimizer, policy=chosen, scaler=UNSCALED),
    )


class ByHandOverParameters:
    """As most code has it."""

    def __init__(self, model: nn.Module) -> None:
        self.values = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        for value, parameter in zip(self.values, model.parameters(), strict=True):
            value.lerp_(parameter, 1 - DECAY)

    def parameters(self) -> list[Tensor]:
        return self.values


AVERAGES: dict[str, Callable[[nn.Module], Any]] = {
    "torch's": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY)),
    "by hand": ByHandOverParameters,
}


@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("kind", AVERAGES)
def test_averages_of_weights_are_those_of_the_masters(kind: str, made: str, low: str) -> None:
    model, _, step = training(low)
    start = masters(model)
    averaged = AVERAGES[kind](model) if made == "before" else None
    expected = [p.double() for p in start]
    for count, example in enumerate(batches(60)):
        step(*example)
        with amp.undecorated(model):
            if averaged is None:
                averaged = AVERAGES[kind](model)
            averaged.update_parameters(model)
        first = count == 0 and (kind == "torch's" or made == "after")
        weight = 1.0 if first else 1 - DECAY
        for total, value in zip(expected, masters(model), strict=True):
            total.lerp_(value.double(), weight)
    assert averaged is not None
    for value, exact, first in zip(averaged.parameters(), expected, start, strict=True):
        assert value.dtype is torch.float32
        assert (exact - first).abs().max() > 1e-4
        assert (value - exact).abs().max() < 1e-6
    if kind == "torch's":
        assert "forward" not in vars(averaged.module)
        assert averaged(*next(batches(1))[:1]).dtype is torch.float32


def test_a_copy_of_a_model_at_o2_says_how_averages_are_made(low: str) -> None:
    model, _, step = training(low)
    step(*next(batches(1)))
    with pytest.warns(amp.AmpBridgeWarning, match=r"(?s)stands still.*Hint: with amp\.undecorated"):
        AveragedModel(model)
    with amp.undecorated(model):
        AveragedModel(model)
    copy.deepcopy(amp.decorate(Net(), None, "O1:bfloat16"))
    model = amp.decorate(Net(), None, amp.Policy("O2", "bfloat16", masters=None))
    with pytest.warns(amp.AmpBridgeWarning, match=r"undecorated\(model, optimizer\)"):
        AveragedModel(model)


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_inside_everything_is_the_user_s_own_float32_model(level: str, low: str) -> None:
    model, optimizer, step = training(low, level)
    examples = list(batches(3))
    step(*examples[0])
    held = list(model.parameters())
    low_bits = [p.detach().clone() for p in held]
    exact = masters(model)
    plain = Net()
    with amp.undecorated(model):
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert all(map(torch.equal, model.parameters(), exact))
        assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
        plain.load_state_dict(model.state_dict())
        x = examples[1][0]
        assert torch.equal(model(x), plain(x))
    assert all(a is b for a, b in zip(model.parameters(), held, strict=True))
    assert all(map(torch.equal, held, low_bits))
    assert all(map(torch.equal, masters(model), exact))
    assert [p for group in optimizer.param_groups for p in group["params"]] == held
    assert step(*examples[2]).applied


def test_what_is_written_inside_is_trained_on(low: str) -> None:
    model, optimizer, step = training(low)
    step(*next(batches(1)))
    with amp.undecorated(model), torch.no_grad():
        model.inner.weight.fill_(1 / 3)
    assert torch.equal(model.inner.weight, torch.full((8, 6), 1 / 3).to(getattr(torch, low)))
    assert torch.equal(masters(model)[0], torch.full((8, 6), 1 / 3))
    amp.undecorate(model, optimizer)
    assert torch.equal(model.inner.weight, torch.full((8, 6), 1 / 3))


def test_steps_inside_are_the_optimizer_s_own(low: str) -> None:
    model, optimizer, step = training(low)
    plain, (first, second, third) = Net(), list(batches(3))
    step(*first)
    theirs = optim.SGD(plain.parameters(), 1e-3, momentum=0.9)
    plain.load_state_dict(dict(zip(plain.state_dict(), masters(model), strict=True)))
    saved = copy.deepcopy(optimizer.state_dict())
    theirs.load_state_dict({**saved, "state": _without_masters(saved["state"])})
    with amp.undecorated(model, optimizer):
        for net, its in ((model, optimizer), (plain, theirs)):
            its.zero_grad()
            loss_fn(net, *second).backward()
            its.step()
    assert all(map(torch.equal, masters(model), plain.parameters()))
    assert step(*third).applied


def _without_masters(state: dict[int, Any]) -> dict[int, Any]:
    return {k: {n: s for n, s in v.items() if n != "master_weight"} for k, v in state.items()}


def test_hooks_on_the_parameters_survive(low: str) -> None:
    """DistributedDataParallel's are of this kind, on what accumulates a parameter's gradient."""
    model = amp.decorate(Net(), None, policy(low))
    calls: list[str] = []
    node = model.inner.weight.view_as(model.inner.weight).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: calls.append("reduced"))
    with amp.undecorated(model):
        pass
    loss_fn(model, *next(batches(1))).backward()
    assert calls == ["reduced"]


def test_recurrent_layers_read_masters_inside() -> None:
    model = nn.LSTM(4, 4)
    x = torch.randn(3, 2, 4)
    expected = model(x)[0].detach()
    amp.decorate(model, None, amp.Policy("O2", "bfloat16", execution="simulated"))
    with amp.undecorated(model):
        assert torch.equal(model(x)[0], expected)
    assert model(x)[0].dtype is torch.float32


def test_an_exception_inside_leaves_the_model_decorated(low: str) -> None:
    model, optimizer, step = training(low)
    step(*next(batches(1)))
    with pytest.raises(KeyError), amp.undecorated(model):
        raise KeyError
    assert TorchBackend().decoration(model, optimizer).policy == policy(low)


def test_without_masters_the_optimizer_is_asked_for(low: str) -> None:
    model = Net()
    optimizer = optim.SGD(model.parameters(), 0.1)
    amp.decorate(model, optimizer, policy(low, masters=None))
    with pytest.raises(amp.ArgumentError, match=r"Hint: with amp\.undecorated\(model, optimizer\)"):
        amp.undecorated(model).__enter__()
    with amp.undecorated(model, optimizer):
        assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.inner.weight.dtype is getattr(torch, low)


def test_an_export_is_told_to_be_made_inside(low: str) -> None:
    model, x = Net(), next(batches(1))[0]
    expected = model(x)
    amp.decorate(model, None, policy(low))
    with pytest.raises(
        AttributeError, match=r"Hint: with amp\.undecorated\(model\): program = torch"
    ):
        torch.export.export(model, (x,))
    with amp.undecorated(model):
        program = torch.export.export(model, (x,))
        graph = torch.fx.symbolic_trace(copy.deepcopy(model))
    assert torch.equal(program.module()(x), expected)
    assert torch.equal(graph(x), expected)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Net(), nn.Linear(3, 6)

    def encode(self, x: Tensor) -> Tensor:
        return self.encoder(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encode(x))


def test_other_methods_are_called_in_a_region(low: str) -> None:
    model, x = Autoencoder(), next(batches(1))[0]
    expected = model.encode(x).detach()
    amp.decorate(model, None, policy(low))
    with amp.autocast(policy(low)):
        assert torch.allclose(model.encode(x).float(), expected, atol=3e-2)
    with amp.undecorated(model):
        assert torch.equal(model.encode(x), expected)


@pytest.mark.parametrize("save_dtype", [None, "float32"])
def test_what_is_saved(save_dtype: str | None, low: str, tmp_path: Path) -> None:
    model = amp.decorate(Net(), None, policy(low), save_dtype=save_dtype)
    held = torch.float32 if save_dtype else getattr(torch, low)
    torch.save(model.state_dict(), tmp_path / "held")
    with amp.undecorated(model):
        torch.save(model.state_dict(), tmp_path / "float32")
    for name, dtype in (("held", held), ("float32", torch.float32)):
        saved = torch.load(tmp_path / name)
        assert saved["inner.weight"].dtype is dtype
        assert saved["norm.weight"].dtype is torch.float32
    assert torch.equal(saved["inner.weight"], Net().inner.weight)


# -- optimizers that do more than step


class Wandering(optim.SGD):
    """Mixes parameters with float32 slots outside of ``step``, as schedule-free optimizers do."""

    def remember(self) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["z"] = torch.zeros_like(p)

    @torch.no_grad()
    def mix(self, weight: float) -> None:
        self.helper(weight)

    def helper(self, weight: float) -> None:
        for p in self.param_groups[0]["params"]:
            p.lerp_(self.state[p]["z"], weight)

    @torch.no_grad()
    def perturb(self) -> None:
        """SAM's first half."""
        for p in self.param_groups[0]["params"]:
            p.add_(p.grad, alpha=0.1)
        self.zero_grad()


def test_an_optimizer_s_own_methods_see_the_masters(low: str) -> None:
    model, plain = Net(), Net()
    optimizer, theirs = (Wandering(net.parameters(), 0.1) for net in (model, plain))
    optimizer.remember()
    amp.decorate(model, optimizer, policy(low))
    theirs.remember()
    for its in (optimizer, theirs):
        its.mix(2.0**-12)
    assert all(map(torch.equal, masters(model), plain.parameters()))
    for parameter, exact in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(parameter, exact.to(parameter.dtype))
    loss_fn(model, *next(batches(1))).backward()
    for parameter, p in zip(plain.parameters(), model.parameters(), strict=True):
        parameter.grad = p.grad.float()
    for its in (optimizer, theirs):
        its.perturb()
    assert all(map(torch.equal, masters(model), plain.parameters()))
    assert {p.grad for p in model.parameters()} == {None}
    amp.undecorate(model, optimizer)
    assert "mix" not in vars(optimizer)


# -- optimizers that are no more than a wrapper


class Prepared(optim.Optimizer):
    """Has an optimizer and none of torch's own attributes, as Accelerate's."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups


@pytest.mark.parametrize("way", ["decorate", "train_step"])
def test_a_wrapped_optimizer_is_refused_and_nothing_is_changed(way: str, low: str) -> None:
    model = Net()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = Prepared(optim.SGD(model.parameters(), 0.1))
    with pytest.raises(amp.UnsupportedError, match=r"(?s)around a SGD.*Hint: policy='O1'; or, "):
        if way == "decorate":
            amp.decorate(model, optimizer, policy(low))
        else:
            step = amp.train_step(loss_fn, model, optimizer, policy=policy(low))
            step(*next(batches(1)))
    assert TorchBackend().decoration(model, None) is None
    assert all(map(torch.equal, model.parameters(), before))
    assert vars(optimizer).keys() == {"optimizer"}


def test_an_error_of_another_kind_leaves_nothing_half_done(
    low: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ampbridge_torch.model.master_updates.attach", fail)
    model = Net()
    with pytest.raises(ZeroDivisionError):
        amp.decorate(model, optim.SGD(model.parameters(), 0.1), policy(low))
    assert TorchBackend().decoration(model, None) is None
    assert {p.dtype for p in model.parameters()} == {torch.float32}


# -- pure 16-bit parameters


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_half_ahead_of_a_policy_warns(level: str, low: str) -> None:
    model = Net().to(getattr(torch, low))
    optimizer = optim.SGD(model.parameters(), 0.1)
    wanted = policy(low).replace(level=level)
    scaler = amp.GradScaler(1.0)
    step = amp.train_step(loss_fn, model, optimizer, policy=wanted, scaler=scaler)
    scaler.enabled = False  # or float16 is refused
    text = r"(?s)by themselves: inner.weight, inner.bias, norm.weight, norm.bias, \.\.\.\..*Hint: model.float"
    with pytest.warns(amp.AmpBridgeWarning, match=text):
        step(*(value.to(getattr(torch, low)) for value in next(batches(1))))


def test_a_frozen_low_part_is_no_cause_for_a_warning(low: str) -> None:
    """As the base of adapters."""
    model = Net()
    model.inner.to(getattr(torch, low)).requires_grad_(False)
    amp.decorate(model, None, policy(low).replace(level="O1"))


def test_copies_that_came_into_a_model_at_o2_are_float32_afterwards() -> None:
    """A teacher that is made in the first step, as byol_pytorch does; what was low before stays low."""
    model = nn.ModuleDict({"student": nn.Linear(4, 4), "own": nn.Linear(4, 4).bfloat16()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", amp.AmpBridgeWarning)  # of the layer in bfloat16
        amp.decorate(model, policy="O2:bfloat16")
    model["teacher"] = copy.deepcopy(model["student"])
    with pytest.warns(amp.AmpBridgeWarning, match=r"teacher\.weight(.|\n)*amp\.undecorated"):
        amp.undecorate(model)
    dtypes = {name: {p.dtype for p in layer.parameters()} for name, layer in model.items()}
    assert dtypes == {
        "student": {torch.float32},
        "own": {torch.bfloat16},
        "teacher": {torch.float32},
    }
