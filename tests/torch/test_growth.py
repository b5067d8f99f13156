"""What torch's own ways of training leave behind; the ways of all backends are in the suite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ampbridge as amp
from ampbridge import lens
from ampbridge_testing.growth import BOUND, Call, growth

pytestmark = pytest.mark.slow

X, Y = torch.randn(256, 32), torch.randn(256, 16)


def loss_fn(model: nn.Module, x: Any, y: Any) -> Any:
    return nn.functional.mse_loss(model(x), y)


def new() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(32, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 16))
    return model, torch.optim.AdamW(model.parameters(), 1e-3)


def keeps_nothing(call: Call) -> None:
    found = growth(call)
    assert found.is_within(BOUND), found


@pytest.mark.parametrize("report", [lens.census, lens.ranges, lens.locate])
def test_reports_leave_nothing(report: Any) -> None:
    model, _ = new()
    keeps_nothing(lambda: report(loss_fn, model, X, Y))


@pytest.mark.parametrize("policy", ["O1", "O2:bfloat16"])
def test_a_native_loop_of_a_decorated_model_leaves_nothing(policy: str) -> None:
    model, optimizer = amp.decorate(*new(), policy)
    scaler = torch.amp.GradScaler("cpu")

    def iterate() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_fn(model, X, Y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    keeps_nothing(iterate)
    amp.undecorate(model, optimizer)


def test_a_checkpointed_step_leaves_nothing() -> None:
    from ampbridge_torch import checkpoint

    def recomputing(model: nn.Module, x: Any, y: Any) -> Any:
        hidden = checkpoint(model[:3], x, use_reentrant=False)
        return nn.functional.mse_loss(model[3](hidden), y)

    step = amp.train_step(recomputing, *new(), policy="O1")
    keeps_nothing(lambda: step(X, Y).applied)
