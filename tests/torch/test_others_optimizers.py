"""What optimizers of others keep: low slots of their own choice, settings that JSON has no number for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import Net, batches, loss_fn, policy
from torch import Tensor, optim

import ampbridge as amp


class LowMomentum(optim.SGD):
    """Keeps its momentum in bfloat16, as AdaFactor does, and refuses any other."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.param_groups[0]["growth_rate"] = math.inf  # Prodigy's

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            momentum: Tensor = state.setdefault("m", torch.zeros_like(p, dtype=torch.bfloat16))
            assert momentum.dtype is torch.bfloat16
            momentum.mul_(0.9).add_(p.grad)
            p.add_(momentum, alpha=-self.param_groups[0]["lr"])


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O2 without masters"])
def test_save_load_and_go_on(level: str, low: str, tmp_path: Path) -> None:
    def make() -> amp.TrainStep:
        model = Net()
        chosen = policy(low).replace(level=level[:2], master_weights="without" not in level)
        optimizer = LowMomentum(model.parameters(), 1e-2)
        return amp.train_step(
            loss_fn, model, optimizer, policy=chosen, scaler=amp.GradScaler(2.0**8)
        )

    step, other = make(), make()
    examples = list(batches(6))
    for example in examples[:3]:
        step(*example)
    step.save(tmp_path / "run")
    other.load(tmp_path / "run")
    assert other.optimizer.param_groups[0]["growth_rate"] == math.inf
    for example in examples[3:]:
        assert step(*example).loss == other(*example).loss
    assert all(map(torch.equal, step.model.parameters(), other.model.parameters()))


def test_fitting_a_model_leaves_slots_that_are_low_by_choice(low: str) -> None:
    model = Net()
    optimizer = LowMomentum(model.parameters(), 1e-2)
    schedule = amp.Schedule([(0, "O1"), (1, policy(low)), (2, "O1")])
    step = amp.train_step(loss_fn, model, optimizer, policy=schedule, scaler=amp.GradScaler(2.0**8))
    for example in batches(4):
        assert step(*example).applied
