"""A policy in another library's loop, here one by hand; ``tests/loops`` has those of the libraries."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn, optim

import ampbridge as amp
from ampbridge_torch.fit.loop_precision import GatedScheduler, LoopPrecision

FACTORS = (1.0, math.inf, 1.0, math.nan, 1.0, 1.0)
REASONS = (None, "inf", None, "nan", None, None)


LOW_SLOTS = {"masters": None, "slots": "bfloat16"}


@pytest.mark.parametrize("level, kept", [("O1", {}), ("O2", {}), ("O2", LOW_SLOTS)])
def test_a_loop_by_hand_is_train_step(level: Any, kept: Any) -> None:
    """Losses, weights, scales and skips, and a rate that only applied steps change."""

    def new() -> tuple[nn.Module, optim.Optimizer, optim.lr_scheduler.LRScheduler]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
        return model, optimizer, optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def loss_fn(model: nn.Module, x: torch.Tensor, factor: float) -> torch.Tensor:
        return model(x).square().mean() * factor

    x, policy = torch.randn(6, 4), amp.Policy(level, execution="simulated", **kept)
    model, optimizer, scheduler = new()
    scaler = amp.GradScaler(2.0**8, growth_interval=2)
    step = amp.train_step(
        loss_fn, model, optimizer, policy=policy, scaler=scaler, scheduler=scheduler
    )
    expected = [step(x, factor) for factor in FACTORS]
    assert tuple(result.reason for result in expected) == REASONS
    rate = optimizer.param_groups[0]["lr"]

    mine, optimizer, scheduler = new()
    loop = LoopPrecision(policy, amp.GradScaler(2.0**8, growth_interval=2))
    loop.decorate(mine)
    gated = GatedScheduler(scheduler, loop)
    for factor, result in zip(FACTORS, expected, strict=True):
        optimizer.zero_grad()
        assert loop.loss_scale == result.scale
        with loop.region():
            loss = loss_fn(mine, x, factor)
        loop.scale(loss).backward()
        assert loop.step(optimizer) == result.applied
        gated.step()
        assert loop.reason == result.reason
        assert loop.last_step_skipped is not result.applied
    assert (loop.steps, loop.skipped_steps) == (6, 2)
    assert optimizer.param_groups[0]["lr"] == rate == 0.1 * 0.5**4
    assert loop.metrics()["skipped_steps"] == 2.0
    (slots, *_) = optimizer.state.values()
    low = torch.bfloat16 if kept else torch.float32
    assert slots["momentum_buffer"].dtype is low
    with loop.undecorated(mine):
        assert next(mine.parameters()).dtype is torch.float32
    loop.undecorate(optimizer)
    amp.undecorate(model)
    for one, other in zip(mine.parameters(), model.parameters(), strict=True):
        assert one.dtype is torch.float32
        assert torch.equal(one, other)
