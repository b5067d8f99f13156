"""Weights, slots and settings: what is saved goes on bit by bit, and weights go to other frameworks.

Compared with torch's own state dicts, and with runs that nothing interrupted.
"""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from same_bits import assert_same
from torch import Tensor, nn, optim
from torch.testing._internal.two_tensor import TwoTensor

import ampbridge as amp
from ampbridge.adapters.roles.saving import OptimizerState
from ampbridge.checkpoints import checkpoint
from ampbridge.errors import StateError, UnsupportedError
from ampbridge_torch.backend import TorchBackend

Backend = TorchBackend()
Make = Callable[[Any], optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: optim.SGD(p, 0.05),
    "SGD, momentum": lambda p: optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "SGD, fused": lambda p: optim.SGD(p, 0.05, momentum=0.9, fused=True),
    "Adam": lambda p: optim.Adam(p, 0.01, weight_decay=0.1),
    "AdamW, foreach": lambda p: optim.AdamW(p, 0.01, foreach=True),
    "AdamW, fused": lambda p: optim.AdamW(p, 0.01, fused=True),
    "AMSGrad": lambda p: optim.Adam(p, 0.01, amsgrad=True),
    "RMSprop": lambda p: optim.RMSprop(p, 0.01, momentum=0.9, centered=True),
    "Adagrad": lambda p: optim.Adagrad(p, 0.05, lr_decay=0.1),
    "NAdam": lambda p: optim.NAdam(p, 0.01),
    "Adamax": lambda p: optim.Adamax(p, 0.01),
    "Adadelta": lambda p: optim.Adadelta(p),
    "ASGD": lambda p: optim.ASGD(p, 0.01),
    "Rprop": lambda p: optim.Rprop(p),
    "RAdam": lambda p: optim.RAdam(p, 0.01),
    "Adafactor": lambda p: optim.Adafactor(p, 0.01),
}

POLICIES = ["O0", "O1:float16", "O1:bfloat16", "O2:float16", "O2:bfloat16"]


class Net(nn.Module):
    """Low and float32 parameters at O2, running statistics that count, and a buffer that is cast."""

    position: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.inner = nn.Linear(6, 8)
        self.counted = nn.BatchNorm1d(8, momentum=None)  # its counter is in its mean
        self.norm = nn.LayerNorm(8)
        self.outer = nn.Linear(8, 3)
        self.register_buffer("position", torch.randn(6))
        self.register_buffer("passing", torch.ones(1), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.inner(self.table(tokens) + self.position)
        return self.outer(F.relu(self.norm(self.counted(x))))


def loss_fn(model: nn.Module, tokens: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(tokens), y)


def batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(7, (9,), generator=generator)
    y = torch.randn(9, 3, generator=generator)
    return tokens, y * torch.inf if number % 5 == 3 else y  # some steps are skipped


def halved(optimizer: optim.Optimizer) -> Any:
    return optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


class Run:
    """Everything that a training is made of, from a seed of its own."""

    def __init__(self, make: Make, policy: Any, seed: int, schedule: Any = halved) -> None:
        torch.manual_seed(seed)
        self.model: nn.Module = Net()
        self.optimizer = make(self.model.parameters())
        self.scheduler = schedule(self.optimizer)
        self.step = self.new_step(policy)

    def new_step(self, policy: Any) -> Any:
        scaler = amp.GradScaler(2.0**10, growth_interval=2) if policy != "O0" else None
        return amp.train_step(
            loss_fn,
            self.model,
            self.optimizer,
            policy=policy,
            scaler=scaler,
            scheduler=self.scheduler,
        )

    def train(self, first: int, last: int) -> list[float]:
        return [self.step(*batch(number)).loss for number in range(first, last)]

    def facts(self) -> dict[str, Any]:
        """All that is remembered, by torch's own account."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler and self.scheduler.state_dict(),
            "step": self.step.state_dict(),
        }


# -- going on


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_bit_by_bit(name: str, policy: str, tmp_path: Path) -> None:
    run = Run(OPTIMIZERS[name], policy, seed=1)
    run.train(0, 5)
    run.step.save(tmp_path)
    before = copy.deepcopy(run.facts())
    resumed = Run(OPTIMIZERS[name], policy, seed=2)
    resumed.step.load(tmp_path)
    if "O2" not in policy:  # whose low weights come with the first step
        assert_same(resumed.facts(), before)
    assert_same(resumed.train(5, 10), run.train(5, 10))
    assert_same(resumed.facts(), run.facts())
    assert run.step.state_dict()["step"] == 10


@pytest.mark.parametrize("target", ["used", "decorated", "undecorated"])
@pytest.mark.parametrize("policy", ["O1:float16", "O2:float16", "O2:bfloat16"])
@pytest.mark.parametrize("name", ["SGD, momentum", "AdamW, fused", "AMSGrad"])
def test_whatever_the_target_was_before(
    name: str, policy: str, target: str, tmp_path: Path
) -> None:
    run = Run(OPTIMIZERS[name], policy, seed=1)
    run.train(0, 5)
    run.step.save(tmp_path)
    resumed = Run(OPTIMIZERS[name], policy, seed=2)
    if target == "decorated":
        amp.decorate(resumed.model, resumed.optimizer, policy)
        assert resumed.optimizer.state == {}
    else:
        resumed.train(20, 23)
    if target == "undecorated":
        amp.undecorate(resumed.model, resumed.optimizer)
    resumed.step.load(tmp_path)
    assert_same(resumed.train(5, 10), run.train(5, 10))
    assert_same(resumed.facts(), run.facts())


@pytest.mark.parametrize("policy", ["O0", "O2:bfloat16"])
def test_before_the_first_step_there_is_nothing_to_remember(policy: str, tmp_path: Path) -> None:
    run = Run(OPTIMIZERS["AdamW, foreach"], policy, seed=1)
    run.step.save(tmp_path)
    resumed = Run(OPTIMIZERS["AdamW, foreach"], policy, seed=2)
    resumed.train(20, 23)
    resumed.step.load(tmp_path)
    assert not resumed.optimizer.state_dict()["state"] or "O2" in policy
    assert_same(resumed.train(0, 5), run.train(0, 5))
    assert_same(resumed.facts(), run.facts())


def test_what_is_undecorated_after_loading_goes_on_in_float32(tmp_path: Path) -> None:
    run = Run(OPTIMIZERS["Adam"], "O2:bfloat16", seed=1)
    run.train(0, 5)
    run.step.save(tmp_path)
    amp.undecorate(run.model, run.optimizer)
    other = Run(OPTIMIZERS["Adam"], "O2:bfloat16", seed=2)
    other.step.load(tmp_path)
    assert_same(other.facts(), run.facts())
    assert {p.dtype for p in other.model.parameters()} == {torch.float32}


def test_without_masters_the_low_weights_and_slots_go_on(tmp_path: Path) -> None:
    policy = amp.Policy("O2", "bfloat16", masters=None)
    runs = [Run(OPTIMIZERS["SGD, momentum"], policy, seed=seed) for seed in (1, 2)]
    runs[0].train(0, 5)
    assert {s["momentum_buffer"].dtype for s in runs[0].optimizer.state.values()} == {
        torch.bfloat16,
        torch.float32,
    }
    runs[0].step.save(tmp_path)
    runs[1].step.load(tmp_path)
    assert_same(runs[1].train(5, 10), runs[0].train(5, 10))
    assert_same(runs[1].facts(), runs[0].facts())


class Gated(nn.Module):
    """With a parameter without dimensions, whose slots have none either."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gate = nn.Linear(6, 4), nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.gate


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_masters_slots_without_dimensions_go_on(name: str, tmp_path: Path) -> None:
    """They follow their parameter, as those of others do; torch's counters do not."""
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))

    def made(seed: int) -> tuple[Gated, optim.Optimizer, Any]:
        torch.manual_seed(seed)
        model = Gated()
        optimizer = OPTIMIZERS[name](model.parameters())
        policy = amp.Policy("O2", "bfloat16", masters=None)
        step = amp.train_step(lambda m, x: m(x).square().mean(), model, optimizer, policy=policy)
        return model, optimizer, step

    model, optimizer, step = made(1)
    for _ in range(3):
        step(x)
    step.save(tmp_path)
    other = made(2)
    other[2].load(tmp_path)
    assert [step(x).loss, step(x).loss] == [other[2](x).loss, other[2](x).loss]
    assert_same(other[1].state_dict(), optimizer.state_dict())
    amp.undecorate(model, optimizer)
    plain = OPTIMIZERS[name](Gated().parameters())  # of a float32 training
    for p in plain.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    plain.step()
    kinds = [
        {
            slot: value.dtype
            for slot, value in o.state[o.param_groups[0]["params"][0]].items()
            if isinstance(value, Tensor)
        }
        for o in (optimizer, plain)
    ]
    assert kinds[0] == kinds[1]
    model(x).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("policy", ["O1:bfloat16", "O2:bfloat16"])
@pytest.mark.parametrize("name", ["AdamW, fused", "SGD, fused", "RMSprop"])
def test_slots_keep_the_strides_of_their_parameters(name: str, policy: str, tmp_path: Path) -> None:
    """Fused kernels run along the memory: other strides than the parameter's mix up its elements."""
    x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 2))
        model = layers.to(memory_format=torch.channels_last)
        optimizer = OPTIMIZERS[name](model.parameters())
        runs.append(
            amp.train_step(lambda m, x: m(x).square().mean(), model, optimizer, policy=policy)
        )
    for _ in range(3):
        runs[0](x)
    runs[0].save(tmp_path)
    runs[1].load(tmp_path)
    strides = [
        [
            {
                slot: value.stride()
                for slot, value in run.optimizer.state[p].items()
                if isinstance(value, Tensor)
            }
            for p in run.model.parameters()
        ]
        for run in runs
    ]
    assert strides[0] == strides[1]
    assert [runs[0](x).loss for _ in range(4)] == [runs[1](x).loss for _ in range(4)]


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: optim.lr_scheduler.StepLR(o, 3, 0.3),
        lambda o: optim.lr_scheduler.MultiStepLR(o, [2, 5, 7], 0.3),
        lambda o: optim.lr_scheduler.LambdaLR(o, lambda n: 0.9**n),
        lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, 20),
        lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 10),
        lambda o: optim.lr_scheduler.SequentialLR(
            o,
            [optim.lr_scheduler.LinearLR(o, 0.1), optim.lr_scheduler.ExponentialLR(o, 0.9)],
            [3],
        ),
    ],
    ids=["StepLR", "MultiStepLR", "LambdaLR", "OneCycleLR", "CosineAnnealingLR", "SequentialLR"],
)
def test_schedulers_go_on(schedule: Any, tmp_path: Path) -> None:
    make = OPTIMIZERS["SGD, momentum"]
    run = Run(make, "O1:float16", 1, schedule)
    run.train(0, 5)
    run.step.save(tmp_path)
    resumed = Run(make, "O1:float16", 2, schedule)
    resumed.step.load(tmp_path)
    rates = []
    for number in range(5, 12):
        assert_same(resumed.train(number, number + 1), run.train(number, number + 1))
        rates.append([r.optimizer.param_groups[0]["lr"] for r in (run, resumed)])
    assert all(one == other for one, other in rates)
    assert len({one for one, _ in rates}) > 1
    assert_same(resumed.facts()["optimizer"], run.facts()["optimizer"])


def test_rates_that_are_tensors_stay_tensors(tmp_path: Path) -> None:
    def make(p: Any) -> optim.Optimizer:
        betas = torch.tensor(0.9), torch.tensor(0.99)
        return optim.AdamW(p, torch.tensor(0.01), betas=betas, foreach=False)

    run, resumed = (Run(make, "O0", seed, lambda o: None) for seed in (1, 2))
    run.train(0, 5)
    run.optimizer.param_groups[0]["lr"].fill_(0.02)
    run.step.save(tmp_path)
    resumed.step.load(tmp_path)
    assert isinstance(resumed.optimizer.param_groups[0]["lr"], Tensor)
    assert_same(resumed.train(5, 10), run.train(5, 10))
    assert_same(resumed.facts(), run.facts())


def test_the_implementation_is_whoever_resumes_it_s_own(tmp_path: Path) -> None:
    run = Run(OPTIMIZERS["AdamW, foreach"], "O0", 1)
    run.train(0, 5)
    run.step.save(tmp_path)
    resumed = Run(OPTIMIZERS["AdamW, fused"], "O0", 2)
    resumed.step.load(tmp_path)
    assert resumed.optimizer.param_groups[0]["fused"] is True
    assert resumed.optimizer.param_groups[0]["foreach"] is not True
    assert_same(resumed.facts()["model"], run.facts()["model"])
    resumed.train(5, 7)


def test_groups_keep_their_own_settings(tmp_path: Path) -> None:
    def make(p: Any) -> optim.Optimizer:
        first, *rest = p
        groups = [{"params": rest, "lr": 0.1}, {"params": [first], "weight_decay": 0.2}]
        return optim.SGD(groups, 0.01, momentum=0.5)

    run, resumed = Run(make, "O1:bfloat16", 1), Run(make, "O1:bfloat16", 2)
    run.train(0, 3)
    run.optimizer.param_groups[1]["momentum"] = 0.25
    run.step.save(tmp_path)
    resumed.step.load(tmp_path)
    assert resumed.optimizer.param_groups[1]["momentum"] == 0.25
    assert_same(resumed.train(3, 8), run.train(3, 8))
    assert_same(resumed.facts(), run.facts())


def test_parameters_come_in_any_order(tmp_path: Path) -> None:
    """Optimizers are also made from sets, whose order is another one in each process."""
    run = Run(lambda p: optim.Adam(p, 0.01), "O2:bfloat16", 1)
    resumed = Run(lambda p: optim.Adam(list(p)[::-1], 0.01), "O2:bfloat16", 2)
    run.train(0, 3)
    run.step.save(tmp_path)
    resumed.step.load(tmp_path)
    assert_same(resumed.train(3, 8), run.train(3, 8))
    assert_same(resumed.facts()["model"], run.facts()["model"])


class FindsItsRate(optim.SGD):
    """As D-Adaptation: a setting that the first step makes a tensor of, of this shape."""

    shape: tuple[int, ...] = ()

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            before = torch.as_tensor(group["estimate"]).broadcast_to(self.shape)
            group["estimate"] = before.clone().lerp_(torch.full(self.shape, 2.0), 0.5)
            group["momentum"] = float(group["estimate"]) / 4
        return super().step(closure)


class FindsItsRateInAVector(FindsItsRate):
    shape = (1,)


@pytest.mark.parametrize("kind", [FindsItsRate, FindsItsRateInAVector])
def test_a_setting_that_became_a_tensor_is_one_again(
    tmp_path: Path, kind: type[FindsItsRate]
) -> None:
    def make(p: Any) -> optim.Optimizer:
        return kind([{"params": p, "estimate": 1.0}], 0.01)

    run, resumed = Run(make, "O1:bfloat16", 1), Run(make, "O1:bfloat16", 2)
    run.train(0, 3)
    run.step.save(tmp_path)
    resumed.step.load(tmp_path)
    (group,) = resumed.optimizer.param_groups
    assert type(group["estimate"]) is torch.Tensor
    assert group["estimate"].shape == kind.shape
    assert group["estimate"] == run.optimizer.param_groups[0]["estimate"]
    assert_same(resumed.train(3, 8), run.train(3, 8))


class Around(optim.Optimizer):
    """As timm's Lookahead: the state is that of the optimizer inside."""

    def __init__(self, inside: optim.Optimizer) -> None:
        super().__init__(inside.param_groups, inside.defaults)
        self.inside, self.param_groups = inside, inside.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.inside.step(closure)

    def state_dict(self) -> dict[str, Any]:
        return self.inside.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inside.load_state_dict(state_dict)
        self.param_groups = self.inside.param_groups


def test_an_optimizer_around_another_is_resumed(tmp_path: Path) -> None:
    def make(p: Any) -> optim.Optimizer:
        return Around(optim.AdamW(p, 0.01))

    run, resumed = Run(make, "O1:bfloat16", 1), Run(make, "O1:bfloat16", 2)
    run.train(0, 3)
    run.step.save(tmp_path)
    resumed.step.load(tmp_path)
    assert_same(resumed.train(3, 8), run.train(3, 8))


# -- names


def names(model: nn.Module) -> list[str]:
    return [weight.name for weight in Backend.weights(model)]


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_wrappers_leave_no_mark_on_names(level: str) -> None:
    plain = Net()
    if level == "O2":
        amp.decorate(plain, None, "O2:bfloat16")
    expected = [name for name in plain.state_dict() if "num_batches_tracked" not in name]
    assert sorted(names(plain)) == sorted(expected)
    wrapped = [nn.DataParallel(plain), torch.compile(plain), torch.compile(nn.DataParallel(plain))]
    trainable = [name for name, _ in plain.named_parameters()]
    for model in wrapped:
        assert names(model) == names(plain)
        assert Backend.parameter_names(model) == trainable
    plain.inner = torch.compile(plain.inner)  # type: ignore[assignment]
    assert sorted(names(plain)) == sorted(expected)
    assert sorted(Backend.parameter_names(plain)) == sorted(trainable)


def test_a_layer_of_the_user_s_own_may_be_called_module() -> None:
    inner = nn.ModuleDict({"module": nn.Linear(2, 3), "head": nn.Linear(3, 1)})
    expected = ["module.weight", "module.bias", "head.weight", "head.bias"]
    for model in (inner, nn.DataParallel(inner)):
        assert names(model) == expected
        assert Backend.parameter_names(model) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="DataParallel moves a CPU's model to CUDA")
def test_a_wrapped_model_loads_what_a_plain_one_saved(tmp_path: Path) -> None:
    run = Run(OPTIMIZERS["Adam"], "O1:bfloat16", 1)
    run.train(0, 5)
    run.step.save(tmp_path)
    resumed = Run(OPTIMIZERS["Adam"], "O1:bfloat16", 2)
    inner = resumed.model
    resumed.model = nn.DataParallel(inner)
    resumed.step = resumed.new_step("O1:bfloat16")
    resumed.step.load(tmp_path)
    assert_same(inner.state_dict(), run.model.state_dict())
    assert_same(resumed.train(5, 8), run.train(5, 8))


def test_tied_weights_are_saved_once() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})
    model["head"].weight = model["table"].weight
    assert names(model) == ["table.weight"]
    values = {"table.weight": np.arange(20, dtype=np.float32).reshape(5, 4)}
    Backend.write_weights(model, values)
    np.testing.assert_array_equal(model["head"].weight.detach().numpy(), values["table.weight"])


def test_roles() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, (2, 5)),
        nn.Conv2d(4, 4, 3, groups=4, bias=False),
        nn.Conv2d(4, 6, 3, groups=2, bias=False),
        nn.ConvTranspose2d(6, 5, 3),
        nn.BatchNorm2d(5),
        nn.GroupNorm(5, 5),
        nn.LayerNorm((5, 2)),
        nn.MultiheadAttention(4, 2),
        nn.Linear(3, 2),
        nn.Conv1d(3, 2, 4, bias=False),
    )
    model.register_buffer("flags", torch.tensor([True]))
    found = {
        w.name: (w.role, dict(zip(w.axes, w.shape, strict=True))) for w in Backend.weights(model)
    }
    assert found == {
        "flags": ("other.flags", {"a": 1}),
        "0.weight": ("conv.kernel", {"o": 4, "i": 3, "h": 2, "w": 5}),
        "0.bias": ("conv.bias", {"o": 4}),
        "1.weight": ("depthwise_conv.kernel", {"c": 4, "m": 1, "h": 3, "w": 3}),
        "2.weight": ("conv.kernel", {"o": 6, "i": 2, "h": 3, "w": 3}),
        "3.weight": ("conv_transpose.kernel", {"i": 6, "o": 5, "h": 3, "w": 3}),
        "3.bias": ("conv.bias", {"o": 5}),
        "4.weight": ("norm.scale", {"c": 5}),
        "4.bias": ("norm.offset", {"c": 5}),
        "4.running_mean": ("norm.mean", {"c": 5}),
        "4.running_var": ("norm.variance", {"c": 5}),
        "5.weight": ("norm.scale", {"c": 5}),
        "5.bias": ("norm.offset", {"c": 5}),
        "6.weight": ("other.weight", {"a": 5, "b": 2}),
        "6.bias": ("other.bias", {"a": 5, "b": 2}),
        "7.in_proj_weight": ("other.in_proj_weight", {"a": 12, "b": 4}),
        "7.in_proj_bias": ("other.in_proj_bias", {"a": 12}),
        "7.out_proj.weight": ("dense.kernel", {"o": 4, "i": 4}),
        "7.out_proj.bias": ("dense.bias", {"o": 4}),
        "8.weight": ("dense.kernel", {"o": 2, "i": 3}),
        "8.bias": ("dense.bias", {"o": 2}),
        "9.weight": ("conv.kernel", {"o": 2, "i": 3, "w": 4}),
    }


def test_what_is_read_is_the_masters(low: str) -> None:
    model = Net()
    exact = {name: p.detach().clone() for name, p in model.named_parameters()}
    amp.decorate(model, None, f"O2:{low}")
    read = Backend.read_weights(model)
    for name, value in exact.items():
        assert read[name].tobytes() == value.numpy().tobytes()
    written = {name: value + np.float32(1e-6) for name, value in read.items()}
    Backend.write_weights(model, written)
    assert torch.equal(
        model.inner.weight, torch.from_numpy(written["inner.weight"]).to(getattr(torch, low))
    )
    amp.undecorate(model)
    assert_same(model.inner.weight, torch.from_numpy(written["inner.weight"]))
    assert_same(model.position, torch.from_numpy(written["position"]))


def test_what_was_written_to_low_weights_is_read() -> None:
    model = Net()
    amp.decorate(model, None, "O2:bfloat16")
    with torch.no_grad():
        model.inner.weight.zero_()
    assert not Backend.read_weights(model)["inner.weight"].any()


def test_slots_that_torch_would_round_stay_as_they_are() -> None:
    """It loads floating slots in the dtype of their parameter."""

    def optimizer(model: nn.Module, value: float) -> optim.Optimizer:
        made = Theirs(model.parameters(), 0.1, momentum=0.9)
        for parameter in model.parameters():
            made.state[parameter] = {"total": torch.full(parameter.shape, value), "calls": 3}
        return made

    model = nn.Linear(2, 1).bfloat16()
    source, target = optimizer(model, 1.0 + 2.0**-20), optimizer(model, 0.0)
    Backend.write_optimizer(target, model, Backend.read_optimizer(source, model))
    assert_same(target.state_dict(), source.state_dict())


def test_what_is_read_is_a_copy() -> None:
    model = Net()
    read = Backend.read_weights(model)
    before = read["inner.weight"].copy()
    with torch.no_grad():
        model.inner.weight.zero_()
    np.testing.assert_array_equal(read["inner.weight"], before)


def test_low_weights_of_the_user_s_own_are_float32_in_files() -> None:
    model = nn.Linear(3, 2).bfloat16()
    read = Backend.read_weights(model)
    assert {value.dtype for value in read.values()} == {np.dtype(np.float32)}
    before = copy.deepcopy(model.state_dict())
    Backend.write_weights(model, read)
    assert_same(model.state_dict(), before)


# -- other frameworks


def test_numpy_and_torch_go_together() -> None:
    """In a process of its own: with two frameworks in one, regions would have to say which."""
    tests = Path(__file__).with_name("with_numpy.py")
    command = [sys.executable, "-m", "pytest", "-q", str(tests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 passed" in done.stdout


# -- what cannot be saved, and what does not fit


class Stateful(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"anything": 1}

    def set_extra_state(self, state: Any) -> None:
        del state


@pytest.mark.parametrize(
    "model, text",
    [
        (nn.Sequential(Stateful(1, 1)), "0 has an extra state"),
        (nn.Sequential(nn.LazyLinear(1)), "Parameters of 0 have no shape yet"),
    ],
    ids=["extra state", "lazy"],
)
def test_a_model_that_would_be_saved_in_part_is_refused(model: nn.Module, text: str) -> None:
    for read in (Backend.weights, Backend.read_weights):
        with pytest.raises(UnsupportedError, match=text):
            read(model)


def stepped(make: Make) -> tuple[nn.Module, optim.Optimizer]:
    model = nn.Linear(3, 2)
    optimizer = make(model.parameters())

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    return model, optimizer


class Quantized(optim.SGD):
    """Its slots are tensors of a class of their own, as those of 8-bit optimizers."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["moment"] = TwoTensor(torch.zeros_like(p), torch.ones_like(p))
        return super().step(closure)


class Counting(optim.SGD):
    """Remembers what is of no parameter."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "calls": 3}


@pytest.mark.parametrize(
    "make, text",
    [
        (
            lambda p: optim.LBFGS(p),
            "LBFGS is more than tensors and numbers by parameter: 'weight/al', list",
        ),
        (lambda p: Quantized(p, 0.1), "Quantized is more .*'weight/moment' is a TwoTensor"),
        (lambda p: Counting(p, 0.1), "Counting is more .*'calls'"),
        (lambda p: optim.SGD([{"params": list(p), "loss": print}], 0.1), "loss=<built-in function"),
    ],
    ids=["LBFGS", "tensors of another class", "another form", "a function"],
)
def test_an_optimizer_with_another_state_is_refused(make: Make, text: str) -> None:
    model, optimizer = stepped(make)
    with pytest.raises(UnsupportedError, match=text):
        Backend.read_optimizer(optimizer, model)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_a_parameter_outside_of_the_model_is_read_and_set_bit_by_bit(dtype: torch.dtype) -> None:
    """In another group, with a rate of its own."""
    model, temperature = nn.Linear(3, 2), nn.Parameter(torch.tensor([1.25], dtype=dtype))
    groups = [{"params": model.parameters()}, {"params": [temperature], "lr": 0.5}]
    optimizer = optim.SGD(groups, 0.1)
    state = Backend.read_optimizer(optimizer, model)
    assert state.slots["optimizer[2]"].tolist() == [1.25]
    with torch.no_grad():
        temperature.fill_(7.0)
    optimizer.param_groups[1]["lr"] = 0.25
    Backend.write_optimizer(optimizer, model, state)
    assert (temperature.item(), temperature.dtype) == (1.25, dtype)
    assert optimizer.param_groups[1]["lr"] == 0.5


ADAM = OPTIMIZERS["Adam"]


def changed(path: list[Any], value: Any) -> Callable[[dict[str, Any]], None]:
    def change(settings: dict[str, Any]) -> None:
        for step in path[:-1]:
            settings = settings[step]
        settings[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed(["kind"], "SGD"),
        changed(["groups"], []),
        changed(["groups"], None),
        changed(["groups", 0], 3),
        changed(["groups", 0, "parameters"], ["bias", "bias"]),
        changed(["groups", 0, "tensors"], None),
        changed(["groups", 0, "tensors"], {"elsewhere": []}),
        changed(["groups", 0, "tensors"], {"lr": [2]}),
        changed(["groups", 0, "tensors"], {"lr": [[1]]}),
        changed(["groups", 0, "settings"], None),
        changed(["groups", 0, "settings", "lr"], "fast"),
        changed(["groups", 0, "settings", "lr"], True),
        changed(["groups", 0, "settings", "lr"], None),
        changed(["groups", 0, "settings", "lr"], -1.0),
        changed(["groups", 0, "settings", "lr"], "nan"),
        changed(["groups", 0, "settings", "betas"], [-1, 0.9]),
        changed(["groups", 0, "settings", "betas", 0], 1),
        changed(["groups", 0, "settings", "eps"], None),
        changed(["groups", 0, "settings", "lr"], [0.1]),
        changed(["groups", 0, "settings", "betas"], [0.9]),
        changed(["groups", 0, "settings", "betas"], 0.9),
        changed(["groups", 0, "settings", "amsgrad"], 1),
        changed(["groups", 0, "settings", "params"], []),
        changed(["groups", 0, "settings", "fused"], True),
        changed(["numbers"], None),
        changed(["numbers", "weight/step"], [1]),
        changed(["numbers", "elsewhere/step"], 1),
        changed(["low"], []),
        changed(["low", "weight/exp_avg"], "int8"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change: Any) -> None:
    model, optimizer = stepped(ADAM)
    read = Backend.read_optimizer(optimizer, model)
    settings = copy.deepcopy(dict(read.settings))
    change(settings)
    with pytest.raises(StateError, match="Hint: "):
        Backend.write_optimizer(optimizer, model, OptimizerState(read.slots, settings))


class Theirs(optim.SGD):
    """Whose ranges and slots are not known."""


class TheirAdam(optim.Adam):
    """The same."""


def test_a_number_of_another_s_optimizer_stays_a_number() -> None:
    model, optimizer = stepped(lambda p: Theirs(p, 0.1))
    read = Backend.read_optimizer(optimizer, model)
    settings = copy.deepcopy(dict(read.settings))
    settings["groups"][0]["settings"]["lr"] = None
    with pytest.raises(StateError, match=r"lr=None cannot be; it is 0\.1 now"):
        Backend.write_optimizer(optimizer, model, OptimizerState(read.slots, settings))


def test_a_number_without_end_comes_back_as_one() -> None:
    """JSON has no infinity; Prodigy's ``growth_rate`` is one."""
    model = nn.Linear(2, 1)
    made = [
        optim.SGD([{"params": model.parameters(), "growth_rate": rate}], 0.1)
        for rate in (math.inf, 1.0)
    ]
    state = Backend.read_optimizer(made[0], model)
    assert json.loads(json.dumps(state.settings, allow_nan=False)) == state.settings
    Backend.write_optimizer(made[1], model, state)
    assert made[1].param_groups[0]["growth_rate"] == math.inf


def test_settings_that_torch_refuses_are_shown() -> None:
    model, optimizer = stepped(ADAM)
    read = Backend.read_optimizer(optimizer, model)
    settings = copy.deepcopy(dict(read.settings))
    settings["groups"][0]["settings"]["eps"] = -1.0
    with pytest.raises(StateError, match=r"Invalid epsilon value: -1\.0; lr=0\.01, betas="):
        Backend.write_optimizer(optimizer, model, OptimizerState(read.slots, settings))


@pytest.mark.parametrize(
    "key, value",
    [
        ("elsewhere/exp_avg", np.ones(3, "f")),
        ("exp_avg", np.ones(3, "f")),
        ("weight/exp_avg", np.ones((2, 2), "f")),
        ("weight/exp_avg", np.ones(3, "f")),
        ("weight/master_weight", np.ones((2, 3), "f")),
    ],
)
def test_slots_that_do_not_fit_are_refused(key: str, value: np.ndarray) -> None:
    model, optimizer = stepped(ADAM)
    read = Backend.read_optimizer(optimizer, model)
    with pytest.raises(StateError, match="of no parameter"):
        state = OptimizerState({**read.slots, key: value}, read.settings)
        Backend.write_optimizer(optimizer, model, state)


def test_counters_of_other_normalizations_are_refused() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2))
    optimizer = optim.SGD(model.parameters(), 0.1)
    read = Backend.read_optimizer(optimizer, model)
    for slots in ({}, {"0.num_batches_tracked": np.zeros(3, np.int64)}):
        with pytest.raises(StateError, match=r"there is no '0\.num_batches_tracked'"):
            Backend.write_optimizer(optimizer, model, OptimizerState(slots, read.settings))


def sequence_of(count: int) -> Any:
    def schedule(optimizer: optim.Optimizer) -> Any:
        each = [optim.lr_scheduler.LinearLR(optimizer, 0.1 * (n + 1)) for n in range(count)]
        return optim.lr_scheduler.SequentialLR(optimizer, each, [*range(1, count)])

    return schedule


def objects(run: Run) -> list[Any]:
    """The optimizer's parameters themselves, and their gradients."""
    parameters = [p for group in run.optimizer.param_groups for p in group["params"]]
    return [*parameters, *(p.grad for p in parameters)]


@pytest.mark.parametrize("policy", ["O0", "O2:bfloat16"])
@pytest.mark.parametrize("fault", ["a scheduler of three", "a slot that is missing"])
def test_what_torch_itself_refuses_changes_nothing(policy: str, fault: str, tmp_path: Path) -> None:
    kind = ADAM if fault == "a scheduler of three" else lambda p: TheirAdam(p, 0.1)
    run = Run(kind, policy, 1, sequence_of(3 if fault == "a scheduler of three" else 2))
    run.train(0, 3)
    run.step.save(tmp_path)
    says = "IndexError: list index out of range"
    if fault == "a slot that is missing":
        state, tensors = checkpoint.read(tmp_path)
        kept = {name: t for name, t in tensors.items() if name != "optimizer/inner.weight/step"}
        checkpoint.write(tmp_path, checkpoint.Checkpoint(state, kept))
        says = "KeyError: 'step'"
    other = Run(kind, policy, 2, sequence_of(2))
    other.train(0, 5)
    for parameter in other.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, held = copy.deepcopy(other.facts()), objects(other)
    with pytest.raises(StateError, match=says):
        other.step.load(tmp_path)
    assert_same(other.facts(), before)
    assert all(one is was for one, was in zip(objects(other), held, strict=True))
    twin = Run(kind, policy, 2, sequence_of(2))
    twin.train(0, 5)
    assert_same(other.train(5, 7), twin.train(5, 7))


@pytest.mark.parametrize("policy", ["O1:float16", "O2:bfloat16"])
def test_a_checkpoint_of_another_optimizer_changes_nothing(policy: str, tmp_path: Path) -> None:
    run = Run(OPTIMIZERS["Adam"], policy, 1)
    run.train(0, 3)
    run.step.save(tmp_path)
    other = Run(OPTIMIZERS["SGD, momentum"], policy, 2)
    other.train(0, 3)
    before = copy.deepcopy(other.facts())
    with pytest.raises(StateError, match="'Adam', this one is 'SGD'"):
        other.step.load(tmp_path)
    assert_same(other.facts(), before)
