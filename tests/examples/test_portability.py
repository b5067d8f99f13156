"""Train 30 steps on torch, save, and go on in TensorFlow, Paddle, JAX and NumPy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import check_installed

pytestmark = pytest.mark.slow

OTHERS = ("numpy", "tensorflow", "paddle", "jax")
WORKLOADS = ("mlp", "conv")


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory,
    run_script: Callable[..., str],
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("portability")
    found = {}
    for framework in ("torch", *OTHERS):
        check_installed(framework)
        file = folder / f"{framework}.json"
        script = Path(__file__).with_name("measure_portability.py")
        run_script(script, framework, file, folder / "checkpoints")
        found[framework] = json.loads(file.read_text())
    return found


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("framework", OTHERS)
def test_the_same_predictions(runs: dict[str, Any], framework: str, workload: str) -> None:
    expected = np.array(runs["torch"][workload]["logits"])
    actual = np.array(runs[framework][workload]["logits"])
    assert np.abs(expected).max() > 1.0  # it has learnt something
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("framework", OTHERS)
def test_the_same_scale_afterwards(runs: dict[str, Any], framework: str, workload: str) -> None:
    expected, actual = runs["torch"][workload], runs[framework][workload]
    assert actual["scale"] == expected["scale"]
    assert actual["applied"] == expected["applied"]
    assert actual["first step"] == expected["first step"] == 31


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_scale_rises_and_falls_afterwards(runs: dict[str, Any], workload: str) -> None:
    scales, applied = runs["torch"][workload]["scale"], runs["torch"][workload]["applied"]
    assert max(scales) > scales[0]
    assert not all(applied)
