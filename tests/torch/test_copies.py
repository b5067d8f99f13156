"""Copies of steps: what goes with them besides model and optimizer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

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
