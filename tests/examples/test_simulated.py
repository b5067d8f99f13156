"""Simulated float16 is one arithmetic: four frameworks, compared number by number with NumPy.

60 steps of O1 and O2 from equal weights, the scale from 2^24 with growth after 15 good steps, so
that it climbs back into overflow several times. What is left between the frameworks is the order
in which their float32 kernels sum, and their exponentials.

JAX runs XLA's own float16, which rounds in more places: a product before its bias is added, and each part
of an activation. Its gradients are as near, but have not as many of the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

Measured = Callable[[str, str], Any]

LOSS_BOUNDS = {"mlp": 1e-5, "own loop": 1e-5, "conv": 1e-3, "transformer": 1e-3}
every_level = pytest.mark.parametrize("level", ("O1", "O2"))
SIMULATED = ("torch", "tensorflow", "paddle")
every_framework = pytest.mark.parametrize("framework", ("numpy", *SIMULATED, "jax"))
every_other = pytest.mark.parametrize("framework", (*SIMULATED, "jax"))
every_run = pytest.mark.parametrize("run", LOSS_BOUNDS)


@pytest.fixture
def runs(measured: Measured, framework: str, level: str) -> Any:
    return measured("measure_simulated", framework)[level]


@pytest.fixture
def reference(measured: Measured, level: str) -> Any:
    return measured("measure_simulated", "numpy")[level]


@every_other
@every_level
@every_run
def test_scales_and_skips_are_numpy_s(runs: Any, reference: Any, run: str) -> None:
    assert runs[run]["scale"] == reference[run]["scale"]
    assert runs[run]["applied"] == reference[run]["applied"]


@every_other
@every_level
@every_run
def test_losses_are_numpy_s(runs: Any, reference: Any, run: str) -> None:
    assert runs[run]["loss"] == pytest.approx(reference[run]["loss"], rel=LOSS_BOUNDS[run])


@every_other
@every_level
def test_gradients_are_numpy_s_bit_by_bit(runs: Any, reference: Any, framework: str) -> None:
    """Of the MLP, in every step that did not overflow; zeros, which are easy, do not count."""
    gradients, expected = np.load(runs["gradients"]), np.load(reference["gradients"])
    finite = np.array(reference["own loop"]["applied"])
    assert finite.sum() > 40
    gradients, expected = gradients[finite], expected[finite]
    counted = expected != 0
    assert counted.mean() > 0.9
    assert framework == "jax" or (gradients == expected)[counted].mean() >= 0.99
    np.testing.assert_allclose(gradients, expected, rtol=2.0**-9, atol=np.abs(expected).max() / 500)


@every_framework
@every_level
def test_gradients_are_rounded_to_float16(runs: Any) -> None:
    gradients = np.load(runs["gradients"])[np.array(runs["own loop"]["applied"])]
    np.testing.assert_array_equal(gradients.astype(np.float16).astype(np.float32), gradients)


@every_framework
@every_level
@every_run
def test_the_scale_falls_by_overflow_and_grows_after_15_good_steps(runs: Any, run: str) -> None:
    """The rule by hand, so that equal sequences are sequences in which something happens."""
    expected, good, grown = 2.0**24, 0, 0
    for scale, applied in zip(runs[run]["scale"], runs[run]["applied"], strict=True):
        assert scale == expected
        good = good + 1 if applied else 0
        if not applied:
            expected /= 2
        elif good == 15:
            expected, good, grown = expected * 2, 0, grown + 1
    assert grown >= 2
    assert runs[run]["applied"].count(False) >= 6


@every_framework
@every_level
def test_a_loop_of_one_s_own_is_train_step(runs: Any) -> None:
    own, step = runs["own loop"], runs["mlp"]
    assert own["scale"] == step["scale"]
    assert own["applied"] == step["applied"]
    assert own["loss"] == pytest.approx(step["loss"], rel=1e-6)
