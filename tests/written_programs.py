"""What the tests of written programs share: recipes, batches that overflow, and the rule of the scale.

Each framework's test_written_code.py runs modules that were written for it, with their demos.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import ampbridge as amp
from ampbridge.scaling.scale_rule import HostStore

WIDTH, BATCH, STEPS = 64, 16, 60
SPIKES = (3, 4, 17, 18, 29, 40)
"""Batches whose targets are so large that float16 gradients overflow at any scale."""

GUIDE = {
    "O1": amp.Recipe(
        amp.Policy("O1", lists="paddle"), amp.Scaling.like("paddle", init_scale=1024.0)
    ),
    "O2": amp.Recipe(
        amp.Policy("O2", lists="paddle"), amp.Scaling.like("paddle", init_scale=1024.0)
    ),
    "accumulation": amp.Recipe(
        amp.Policy("O1", lists="paddle"),
        amp.Scaling.like("paddle", init_scale=1024.0),
        accumulate=10,
    ),
}
"""What Paddle's guide to mixed precision does: see ``examples/paddle_simplenet``."""

SCALINGS = {
    "torch": amp.Scaling.like("torch", growth_interval=7),
    "paddle, twice": amp.Scaling.like(
        "paddle", init_scale=2.0**10, growth_interval=5, backoff_interval=2, growth_factor=4.0
    ),
    "fleet": amp.Scaling.like("paddle_fleet", init_scale=2.0**10, growth_interval=6),
    "deepspeed": amp.Scaling.like("deepspeed", growth_interval=6, min_scale=2.0**-24),
    "megatron": amp.Scaling.like("megatron", init_scale=2.0**10, growth_interval=6),
    "apex": amp.Scaling.like("apex", growth_interval=6),
    "ampbridge": amp.Scaling(init_scale=2.0**24, growth_interval=3),
    "keras": amp.Scaling.like("keras", init_scale=2.0**10, growth_interval=5),
    "static": amp.Scaling(init_scale=128.0, dynamic=False),
    "at the floor": amp.Scaling(init_scale=2.0, min_scale=1.0, growth_interval=50),
    "at the ceiling": amp.Scaling(init_scale=64.0, max_scale=100.0, growth_interval=3),
    "kept at the ceiling": amp.Scaling(
        init_scale=64.0, max_scale=100.0, growth_interval=3, at_max_scale="keep"
    ),
}


CLIPPINGS = {"clip_norm": 0.01, "clip_each_norm": 0.01, "clip_value": 2e-4}
"""Limits that the gradients of these batches are above."""


class Run(NamedTuple):
    """What the steps of a run did."""

    loss: list[float]
    scale: list[float]
    applied: list[bool]
    overflowed: list[bool]
    weights: list[np.ndarray]


def batches(count: int = STEPS, spikes: tuple[int, ...] = SPIKES) -> Iterator[Any]:
    random = np.random.default_rng(11)
    for number in range(count):
        x = random.standard_normal((BATCH, WIDTH), dtype=np.float32)
        y = random.standard_normal((BATCH, WIDTH), dtype=np.float32)
        yield x, y * np.float32(1e9 if number in spikes else 1)


def scales_by_the_rule(recipe: amp.Recipe, run: Run) -> list[float]:
    """The scale of each step, by the rule, given which overflowed; in waiting micro-batches it stays."""
    assert recipe.scaler is not None
    store = HostStore(recipe.scaler.first_state(recipe.scaler.init_scale))
    scales = []
    for applied, overflowed in zip(run.applied, run.overflowed, strict=True):
        scales.append(float(store.read().scale))
        counts = applied or overflowed or recipe.on_overflow == "drop_microbatch"
        if counts:
            store.update(int(overflowed), recipe.scaler)
    return scales


def assert_trains_as(run: Run, expected: Run, rel: float = 1e-5) -> None:
    """Scales and skips alike, losses and weights within ``rel``."""
    assert (run.scale, run.applied) == (expected.scale, expected.applied)
    assert run.overflowed == expected.overflowed
    assert run.loss == pytest.approx(expected.loss, rel=rel)
    for value, wanted in zip(run.weights, expected.weights, strict=True):
        np.testing.assert_allclose(value, wanted, atol=rel)
