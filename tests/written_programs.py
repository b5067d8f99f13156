"""What the tests of written modules share: batches that overflow, loss scalings, and a second oracle.

Each framework's test_written_code.py runs modules that were written for it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import ampbridge as amp

STEPS = 50
SPIKES = (3, 4, 5, 17, 18, 29, 40)
"""Batches whose targets are infinite, so that gradients overflow at any scale and in any dtype."""

SCALINGS = {
    "torch": amp.Scaling.like("torch", growth_interval=7),
    "paddle, twice": amp.Scaling.like(
        "paddle", init_scale=2.0**10, growth_interval=5, backoff_interval=2, growth_factor=4.0
    ),
    "fleet": amp.Scaling.like("paddle_fleet", init_scale=2.0**10, growth_interval=6),
    "deepspeed": amp.Scaling.like("deepspeed", growth_interval=2, min_scale=2.0**-24),
    "megatron": amp.Scaling.like("megatron", init_scale=2.0**10, growth_interval=6),
    "flax": amp.Scaling.like("flax", growth_interval=6),
    "ampbridge": amp.Scaling(init_scale=2.0**24, growth_interval=3),
    "static": amp.Scaling.like("paddle", init_scale=128.0, dynamic=False),
    "at the floor": amp.Scaling(init_scale=2.0, min_scale=1.0, growth_interval=50),
    "at the ceiling": amp.Scaling(init_scale=64.0, max_scale=100.0, growth_interval=3),
    "kept at the ceiling": amp.Scaling(
        init_scale=64.0, max_scale=100.0, growth_interval=3, at_max_scale="keep"
    ),
    "until finite": amp.Scaling(
        init_scale=2.0**10, growth_interval=6, backoff_interval=2, backoff_count="until_finite"
    ),
    "in thirds": amp.Scaling(init_scale=1000.0, growth_factor=3.0, growth_interval=2),
}


class Run(NamedTuple):
    """Of each batch the scale of its loss, and whether weights changed after it; the weights at the end."""

    scales: list[float]
    applied: list[bool]
    weights: list[Any]


def batches(
    shape: tuple[int, ...], targets: int, spikes: tuple[int, ...] = SPIKES
) -> Iterator[Any]:
    """Eight examples each."""
    random = np.random.default_rng(11)
    for number in range(STEPS):
        x = random.standard_normal((8, *shape), dtype=np.float32)
        y = random.standard_normal((8, targets), dtype=np.float32)
        yield x, y * np.float32(np.inf if number in spikes else 1)


def spikes_for(recipe: amp.Recipe) -> tuple[int, ...]:
    """None, where nothing checks whether gradients are finite."""
    return SPIKES if recipe.scaler else ()


def by_ampbridge(recipe: amp.Recipe) -> Run:
    """The scale and the skips of ampbridge's own GradScaler on NumPy, in float32.

    In a process of its own: one that has imported two frameworks is asked which it means.
    """
    return _of_numpy().submit(_by_ampbridge, recipe.to_dict()).result()


@cache
def _of_numpy() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _by_ampbridge(settings: dict[str, Any]) -> Run:
    from ampbridge_numpy import nn, optim

    recipe = amp.Recipe.from_dict(settings)
    scaler = recipe.scaler and replace(recipe.scaler, at_min_scale="stay")
    recipe = amp.Recipe("O0", scaler, recipe.accumulate, on_overflow=recipe.on_overflow)
    model = nn.Linear(2, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    step = amp.train_step(lambda m, x, y: nn.mse_loss(m(x), y), model, optimizer, recipe=recipe)
    results = [step(x, y) for x, y in batches((2,), 1, spikes_for(recipe))]
    scales, applied = ([getattr(r, name) for r in results] for name in ("scale", "applied"))
    return Run(scales, applied, model.parameters())
