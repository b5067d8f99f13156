"""The lens on PyTorch: twelve planted faults located and cured, by torch's kernels and simulated.

And what it looked at, given back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import same_bits
import torch
from given_back import X, assert_attributes_given_back, assert_given_back, every_report
from monitored import assert_monitored_alike
from planted_faults import (
    FAULTS,
    LOST,
    Fault,
    Forward,
    assert_located_and_cured,
    assert_raising_is_reported,
    assert_scale_is_found,
    assert_swallowed_is_located,
)
from torch import Tensor, nn

import ampbridge as amp
from ampbridge import lens


class Layer(nn.Module):
    """Weights, parts and a function."""

    def __init__(
        self, function: Forward, weights: Mapping[str, np.ndarray], parts: Mapping[str, nn.Module]
    ) -> None:
        super().__init__()
        self.function = function
        for name, values in weights.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(values)))
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class TorchKit:
    """Functions of torch, and modules."""

    def __init__(self, device: str) -> None:
        self._device = device

    def __getattr__(self, op: str) -> Callable[..., Tensor]:
        return getattr(torch, op)

    def layer(
        self,
        forward: Forward,
        weights: Mapping[str, np.ndarray] = {},
        parts: Mapping[str, Any] = {},
    ) -> Layer:
        return Layer(forward, weights, parts).to(self._device)

    @staticmethod
    def sum(x: Tensor, axis: int | None = None) -> Tensor:
        return torch.sum(x) if axis is None else torch.sum(x, axis, keepdim=True)

    @staticmethod
    def mean(x: Tensor, axis: int | None = None) -> Tensor:
        return torch.mean(x) if axis is None else torch.mean(x, axis, keepdim=True)

    @staticmethod
    def transpose(x: Tensor) -> Tensor:
        return x.T


@pytest.mark.parametrize("execution", ["native", "simulated"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_located_and_cured(fault: Fault, execution: str, device: str) -> None:
    if device == "cuda" and execution == "simulated":
        pytest.skip("CUDA has its kernels")
    fault = fault._replace(policy=fault.policy.replace(execution=execution))
    kit = TorchKit(device)
    assert_located_and_cured(kit, fault)


def test_an_overflow_that_is_swallowed_is_located(device: str) -> None:
    assert_swallowed_is_located(TorchKit(device))


def test_values_that_vanish_are_located_where_they_do(device: str) -> None:
    assert_located_and_cured(TorchKit(device), LOST)


def test_what_comes_before_an_exception_is_reported(device: str) -> None:
    assert_raising_is_reported(TorchKit(device))


def test_gradients_that_depend_on_the_scale_are_found(device: str) -> None:
    def forward(layer: Layer, x: Tensor) -> Tensor:
        products = x @ layer.w
        products.register_hook(lambda gradient: gradient.clamp(-0.5, 0.5))
        return products.mean()

    model = TorchKit(device).layer(forward, {"w": np.eye(4, dtype=np.float32)})
    assert_scale_is_found(model, lambda m, x: m(x), "matmul", "")


class Noisy(nn.Module):
    """Whatever a pass may change."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm, self.averaged = nn.BatchNorm1d(4), nn.BatchNorm1d(4, momentum=None)
        self.drop = nn.Dropout(0.5)
        self.generator = torch.Generator()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("even", torch.tensor([True]))
        self.register_buffer("passing", torch.zeros(4, dtype=torch.float64), persistent=False)
        self.register_buffer("replaced", torch.zeros(3, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.even.logical_not_()
        self.passing.add_(random.random() + np.random.random())
        self.replaced = self.replaced + 1
        x = x * torch.rand(x.shape, generator=self.generator)
        return self.drop(self.averaged(self.norm(self.linear(x))))


class NoisyTorch:
    """See ``given_back.Noisy``; beside its state the gradients and the optimizer's."""

    def make(self) -> Noisy:
        torch.manual_seed(3)
        model = Noisy()
        model.generator.manual_seed(4)
        self.optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        self.train(model)
        return model

    def train(self, model: Noisy) -> None:
        self.optimizer.zero_grad()
        self.loss(model, torch.tensor(X)).backward()
        self.optimizer.step()

    @staticmethod
    def loss(model: Noisy, x: Tensor) -> Tensor:
        return torch.square(model(x)).mean()

    def state(self, model: Noisy) -> dict[str, Any]:
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        gradients = {f"{name}.grad": p.grad for name, p in model.named_parameters()}
        slots = {
            f"{number}.{name}": value
            for number, state in enumerate(self.optimizer.state.values())
            for name, value in state.items()
        }
        modes = {f"{name} mode": m.training for name, m in model.named_modules()}
        every = {**tensors, **gradients, **slots}
        return {name: (id(t), same_bits.bits(t).tolist()) for name, t in every.items()} | modes

    def draw(self, model: Noisy) -> list[Any]:
        drawn = torch.rand(3).tolist()
        self.train(model)
        return [drawn, self.loss(model, torch.tensor(X)).item()]


@every_report
def test_a_look_gives_everything_back(report: str) -> None:
    assert_given_back(NoisyTorch(), report)


def test_a_graph_from_before_a_look_can_still_be_differentiated() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))  # the graph holds the second's weight
    loss = torch.square(model(torch.tensor(X))).mean()
    lens.census(NoisyTorch.loss, model, X, policy="O1:bfloat16")
    loss.backward()


@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_a_batch_of_numpy_arrays(inputs: int, device: str) -> None:
    """However many: two arrays are no step's pair of positional and named inputs."""
    model = nn.Linear(4, 1).to(device)
    batch = [np.ones((2, 4), np.float32)] * inputs
    found = lens.ranges(lambda m, *xs: m(sum(xs)).square().mean(), model, *batch)
    assert [row.name for row in found.rows if row.kind == "parameter"] == ["weight", "bias"]


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_monitored_training_is_the_same(policy: str) -> None:
    assert_monitored_alike("torch", policy)


@pytest.mark.slow
@pytest.mark.parametrize("execution, graphs", [("simulated", 1), ("native", 2)])
def test_a_monitored_step_is_compiled_once(execution: Any, graphs: int) -> None:
    """Each of the two models, looks or not. Natively the gradients and the update are graphs."""
    torch._dynamo.utils.counters.clear()
    policy = amp.Policy("O1", "bfloat16", execution=execution)
    assert_monitored_alike("torch", policy, "digits-mlp", compile=True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2 * graphs


def test_what_forward_assigns_is_given_back() -> None:
    model = nn.Linear(4, 1)
    model.cache = torch.zeros(3)
    weight, cache = model.weight, model.cache

    def forward(model: nn.Module, x: Tensor) -> Tensor:
        model.cache += 1
        loss = model(x).mean()
        model.weight = nn.Parameter(torch.ones(1, 4))
        return loss

    assert_attributes_given_back(model, forward)
    assert model.weight is weight
    assert model.cache is cache
    assert not cache.any()


def test_parity_of_two_policies():
    """Expected from the outputs of the decorated model itself, by torch in float64."""
    x = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    labels = torch.from_numpy(np.arange(50) % 5)
    a, b = (amp.neutral.mlp("torch", 6, [8, 8], 5, seed=0) for _ in range(2))

    def forward(model: nn.Module, x: Tensor) -> Tensor:
        return model(x)

    found = lens.parity((forward, a, "O0"), (forward, a, "O2:bfloat16"), x, labels=labels)
    low = amp.decorate(amp.neutral.mlp("torch", 6, [8, 8], 5, seed=0), policy="O2:bfloat16")
    with torch.no_grad():
        outputs = (model(torch.from_numpy(x)).double().log_softmax(-1) for model in (a, low))
        one, other = (each[range(50), labels].numpy() for each in outputs)
    assert found.logits is not None
    assert found.logits.log_ratio.mean == pytest.approx((one - other).mean(), rel=1e-9)
    assert sum(layer.part for layer in found.layers) == pytest.approx(1, abs=0.05)

    b.requires_grad_(False)
    frozen = lens.parity((forward, a, "O0"), (forward, b, "O2:bfloat16"), torch.from_numpy(x))
    assert frozen.layers == ()
    assert frozen.logits == lens.parity((forward, a, "O0"), (forward, a, "O2:bfloat16"), x).logits
