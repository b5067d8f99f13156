"""Copies of steps, and shallow copies of decorated models."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ampbridge as amp


class Criterion(nn.Module):
    """With a weight that the optimizer trains as well, as a bound method."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def loss(self, model: Any, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * model(x)).square().mean()


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_loss_and_scheduler_are_copied_with_it(level: str) -> None:
    torch.manual_seed(0)
    model, criterion = nn.Linear(3, 2), Criterion()
    policy = "O0" if level == "O0" else amp.Policy("O2", "bfloat16", execution="simulated")
    optimizer = torch.optim.Adam([*model.parameters(), *criterion.parameters()], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    step = amp.train_step(criterion.loss, model, optimizer, policy=policy, scheduler=scheduler)
    x = torch.randn(4, 3)
    for _ in range(3):
        step(x)
    rate, weight = optimizer.param_groups[0]["lr"], criterion.weight.item()
    copied = copy.deepcopy(step)
    theirs = [copied(x).loss for _ in range(3)]
    assert (optimizer.param_groups[0]["lr"], criterion.weight.item()) == (rate, weight)
    assert copied.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**3
    assert [step(x).loss for _ in range(3)] == theirs


# -- shallow copies, whose attributes are the original's


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.first(x)).tanh())

    def scores(self, x: Tensor) -> Tensor:
        """A method of the user's own."""
        return self.forward(x)


def of_meta_learning(module: nn.Module) -> nn.Module:
    """The recipe of learn2learn and others: the class, its attributes, other tensors."""
    made = type(module).__new__(type(module))
    vars(made).update(vars(module))
    made._parameters = {name: 2 * p for name, p in module._parameters.items()}
    made._modules = {name: of_meta_learning(part) for name, part in module._modules.items()}
    return made


def of_higher(module: nn.Module) -> nn.Module:
    """As higher makes them: a class below the model's, its attributes without its hooks."""

    class Functional(type(module)):  # type: ignore[misc]
        def __init__(self) -> None:
            nn.Module.__init__(self)

    made = Functional()
    for name, value in vars(module).items():
        if not name.startswith("_"):
            setattr(made, name, value)
    for name, part in module._modules.items():
        made._modules[name] = of_higher(part)
    for name, parameter in module._parameters.items():
        made._parameters[name] = 2 * parameter
    return made


def with_another_head(module: nn.Module) -> nn.Module:
    made = copy.copy(module)
    made._modules = {**module._modules, "head": copy.deepcopy(module.head).requires_grad_(False)}
    with torch.no_grad():
        made.head.weight.mul_(2)
    return made


def replica(module: nn.Module) -> nn.Module:
    """As DataParallel makes them."""
    made: Any = module._replicate_for_data_parallel()
    made._modules = {**module._modules, "norm": nn.Identity()}
    return made


@pytest.mark.parametrize("policy", ["O1:float16", "O1:bfloat16", "O2:bfloat16"])
@pytest.mark.parametrize("keep", [[], ["first"], ["norm", "head"], ["Net"]], ids=str)
@pytest.mark.parametrize("make", [of_meta_learning, of_higher, with_another_head, replica])
def test_a_shallow_copy_runs_itself(make: Any, keep: list[str], policy: str) -> None:
    """The original's decoration acts on the copy: it equals a copy that was made before, decorated."""
    torch.manual_seed(0)
    plain, x = Net(), torch.randn(3, 5)
    of_policy = amp.Policy.parse(policy).replace(keep=keep)
    decorated = amp.decorate(copy.deepcopy(plain), policy=of_policy)
    found = make(decorated)
    expected = make(plain)
    torch.testing.assert_close(found(x), expected(x), rtol=0.02, atol=0.02)
    assert not torch.allclose(found(x), decorated(x), rtol=0.1, atol=0.05)
    assert torch.equal(found.scores(x), found(x))
    assert torch.equal(decorated(x), amp.decorate(copy.deepcopy(plain), policy=of_policy)(x))
