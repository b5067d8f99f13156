"""A training that saves after every step and goes on where it was, to be killed by test_kill.py.

Each run is a process of its own, which imports nothing of the tests.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

import ampbridge as amp


def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x), y)


def batch(number: int) -> tuple[Tensor, Tensor]:
    """The same for a number in every run; some of them overflow, two in a row."""
    generator = torch.Generator().manual_seed(number)
    x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)
    return x, y * torch.inf if number % 11 in (4, 5) else y


def train(checkpoint: Path, last: int, result: Path | None) -> None:
    """Train up to step ``last``, from the checkpoint if there is one; save all state to ``result``."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16, momentum=None), nn.ReLU(), nn.Linear(16, 3)
    )
    optimizer = optim.AdamW(model.parameters(), 0.01, amsgrad=True)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 5, 0.97)
    step = amp.train_step(
        loss_fn,
        model,
        optimizer,
        policy=amp.Schedule.when(skips=2, use="O2:bfloat16", otherwise="O2:float16", back_after=6),
        scaler=amp.GradScaler(2.0**12, growth_interval=3),
        scheduler=scheduler,
    )
    if (checkpoint / "state.json").exists():
        step.load(checkpoint)
    while (number := step.state_dict()["step"]) < last:
        step(*batch(number))
        step.save(checkpoint)
    if result is not None:
        amp.undecorate(model, optimizer)
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "step": step.state_dict(),
            },
            result,
        )
