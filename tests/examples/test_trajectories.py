"""One training script, five frameworks: the same scales, the same skipped steps, the same losses.

Every framework trains in its own process from the same weights on the same batches, free running:
nothing is synchronised on the way. O1 float16, 60 steps, scale from 2^24, no growth within the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Measured = Callable[..., Any]

FRAMEWORKS = ("numpy", "torch", "tensorflow", "paddle", "jax")
every_framework = pytest.mark.parametrize("framework", FRAMEWORKS)
every_workload = pytest.mark.parametrize(
    "workload",
    [
        "mlp",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("conv", "transformer")),
    ],
)


@pytest.fixture
def run(measured: Measured, framework: str, workload: str) -> Any:
    return measured("measure_trajectories", framework, workload)


@every_framework
@every_workload
def test_scales_and_skips_are_those_of_numpy(measured: Measured, run: Any, workload: str) -> None:
    reference = measured("measure_trajectories", "numpy", workload)
    assert run["scale"] == reference["scale"]
    assert run["applied"] == reference["applied"]
    assert run["reason"] == reference["reason"]


@every_framework
@every_workload
def test_losses_are_within_two_percent_of_numpys(
    measured: Measured, run: Any, workload: str
) -> None:
    reference = measured("measure_trajectories", "numpy", workload)["loss"]
    assert run["loss"] == pytest.approx(reference, rel=0.02)


@every_framework
@every_workload
def test_scale_halves_after_each_overflow_and_nowhere_else(run: Any) -> None:
    expected = 2.0**24
    for scale, applied, reason in zip(run["scale"], run["applied"], run["reason"], strict=True):
        assert scale == expected
        assert reason == (None if applied else "inf")
        expected = expected if applied else expected / 2
    assert run["applied"].count(False) >= 3


@every_framework
@every_workload
def test_it_learns_all_the_same(run: Any) -> None:
    assert run["loss"][0] > 2.0 > 1.0 > run["loss"][-1]
    assert run["accuracy"] > 0.75


@pytest.mark.slow
@every_framework
def test_accuracy_is_that_of_float32(measured: Measured, framework: str) -> None:
    """The MLP after 400 steps of each, the skipped ones included: within 1 point on 600 digits."""
    runs = measured("measure_trajectories", framework, "long")
    full, mixed = runs["O0"], runs["O1:float16"]
    assert mixed["applied"].count(False) >= 3
    assert full["applied"].count(False) == 0
    assert full["accuracy"] > 0.95
    assert mixed["accuracy"] == pytest.approx(full["accuracy"], abs=0.01)
