"""Trainings on the virtual device and, by the simulation, on the CPU: losses, scales, skipped steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import ampbridge as amp

SCALING = {"init_scale": 2.0**24, "backoff_factor": 2.0**-5, "growth_interval": 2}
STEPS = 6

WAYS = ("loop", "O1", "O2")
"""Torch's own loop, beside ``torch.autocast("cuda")``; ``train_step``, beside itself on the device."""

Region = Callable[[], AbstractContextManager[Any]]


class Trained(NamedTuple):
    losses: list[float]
    scales: list[float]
    applied: list[bool]


class Training(NamedTuple):
    """``loss(model, *batch)`` of ``build()``, by AdamW; each with the same numbers every time."""

    name: str
    build: Callable[[], nn.Module]
    loss: Callable[..., torch.Tensor]
    batches: Sequence[Sequence[np.ndarray]]

    def _made(self, device: str, implementation: str) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = self.build().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **{implementation: True})
        return model, optimizer

    def _batches(self, device: str) -> list[list[torch.Tensor]]:
        return [[torch.from_numpy(x).to(device) for x in batch] for batch in self.batches]

    def by_ampbridge(self, device: str, policy: amp.Policy, implementation: str) -> Trained:
        """``implementation`` of AdamW: ``"fused"`` or ``"foreach"``."""
        model, optimizer = self._made(device, implementation)
        scaler = amp.GradScaler(**SCALING) if policy.needs_scaling else None
        step = amp.train_step(
            self.loss, model, optimizer, policy=policy, scaler=scaler, compile=False
        )
        results = []
        for number, batch in enumerate(self._batches(device)):
            torch.manual_seed(number)
            results.append(step(*batch))
        amp.undecorate(model, optimizer)
        return Trained(
            [float(r.loss) for r in results],
            [float(r.scale) for r in results],
            [bool(r.applied) for r in results],
        )

    def by_loop(self, device: str, low: str, region: Region, implementation: str) -> Trained:
        """By the loop of torch's documentation, with torch's own scaler."""
        model, optimizer = self._made(device, implementation)
        scaler = torch.amp.GradScaler(device, enabled=low == "float16", **SCALING)
        trained = Trained([], [], [])
        for number, batch in enumerate(self._batches(device)):
            torch.manual_seed(number)
            scale = scaler.get_scale()
            optimizer.zero_grad()
            with region():
                loss = self.loss(model, *batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            trained.losses.append(loss.item())
            trained.scales.append(scale)
            trained.applied.append(scaler.get_scale() >= scale)
        return trained

    def pair(self, way: str, low: str, implementation: str) -> tuple[Trained, Trained]:
        """The simulation, and what it stands for: ``way`` is one of ``WAYS``."""
        policy = amp.Policy("O2" if way == "O2" else "O1", low)
        simulated = policy.replace(execution="simulated")
        if way == "loop":
            return (
                self.by_loop("cpu", low, lambda: amp.autocast(simulated), implementation),
                self.by_loop(
                    "cuda", low, lambda: torch.autocast("cuda", getattr(torch, low)), implementation
                ),
            )
        return (
            self.by_ampbridge("cpu", simulated, implementation),
            self.by_ampbridge("cuda", policy, implementation),
        )
