"""A training that saves after every step and goes on where it was, to be killed by test_kill.py.

Each run is a process of its own, which imports nothing of the tests.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ampbridge as amp
from ampbridge_numpy import nn, optim


class Net(nn.Module):
    def __init__(self) -> None:
        self.conv = nn.Conv2d(1, 4, 3, rng=0)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(64, 3, rng=1)

    def forward(self, x: np.ndarray) -> np.ndarray:
        return self.head(nn.flatten(nn.relu(self.norm(self.conv(x)))))


def loss_fn(model: nn.Module, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return nn.mse_loss(model(x), y)


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    """The same for a number in every run; some of them overflow, two in a row."""
    rng = np.random.default_rng(number)
    x, y = rng.normal(size=(8, 1, 6, 6)), rng.normal(size=(8, 3))
    return x, np.full_like(y, np.inf) if number % 11 in (4, 5) else y


def train(checkpoint: Path, last: int, result: Path | None) -> None:
    """Train up to step ``last``, from the checkpoint if there is one; save all state to ``result``."""
    np.seterr(all="ignore")
    model = Net()
    optimizer = optim.AdamW(model.parameters(), 0.01)
    step = amp.train_step(
        loss_fn,
        model,
        optimizer,
        policy=amp.Schedule.when(skips=2, use="O2:bfloat16", otherwise="O2:float16", back_after=6),
        scaler=amp.GradScaler(2.0**12, growth_interval=3),
    )
    if (checkpoint / "state.json").exists():
        step.load(checkpoint)
    while (number := step.state_dict()["step"]) < last:
        step(*batch(number))
        step.save(checkpoint)
    if result is not None:
        step.save(result)
