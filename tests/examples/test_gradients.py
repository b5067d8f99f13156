"""Gradients under O1 against the framework's own float64, over all parameters together.

With smooth activations the error is about one unit roundoff, 2^-11 or 2^-8; four are allowed. A
rectifier would add its own: rounding flips the sign of an input near zero, and the gradient jumps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.search]  # by night torch compiles with Inductor

Measured = Callable[[str, str], Any]

FRAMEWORKS = ("numpy", "torch", "tensorflow", "paddle", "jax")
MODES = ("value_and_grad", "step", "compiled step")
every_framework = pytest.mark.parametrize("framework", FRAMEWORKS)
every_workload = pytest.mark.parametrize("workload", ("mlp", "conv", "transformer"))
every_mode = pytest.mark.parametrize(
    "framework, mode",
    [(f, m) for f in FRAMEWORKS for m in MODES if (f, m) != ("numpy", "compiled step")],
)


@every_framework
@every_workload
def test_float64_models_are_one_model(measured: Measured, workload: str, framework: str) -> None:
    """Loss and gradient norm agree: the weights are copied right, the layers are the same."""
    reference = measured("measure_gradients", "numpy")[workload]
    result = measured("measure_gradients", framework)[workload]
    assert result["loss"] == pytest.approx(reference["loss"], rel=1e-8)
    assert result["norm"] == pytest.approx(reference["norm"], rel=1e-8)


@every_mode
@every_workload
@pytest.mark.parametrize("dtype, roundoff", [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_error_is_that_of_the_dtype(
    measured: Measured, workload: str, framework: str, mode: str, dtype: str, roundoff: float
) -> None:
    """Not larger, and not smaller either: then it would not have run in low precision."""
    error = measured("measure_gradients", framework)[workload]["errors"][f"{mode}, {dtype}"]
    assert roundoff / 4 < error < roundoff * 4


@every_mode
def test_denied_linear_is_float32(measured: Measured, framework: str, mode: str) -> None:
    error = measured("measure_gradients", framework)["mlp"]["errors"][f"{mode}, linear denied"]
    assert error < 1e-5
