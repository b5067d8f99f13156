"""The conformance suite on Paddle's GPU path."""

from __future__ import annotations

import paddle
import pytest

from ampbridge_paddle.testing import PaddleHarness
from ampbridge_testing import BackendConformance

pytestmark = pytest.mark.slow


class TestPaddleOnADevice(BackendConformance):
    harness = PaddleHarness()


def test_it_is_the_gpu_path() -> None:
    harness = TestPaddleOnADevice.harness
    assert (harness.simulated, harness.has_kernels, harness.simulates) == (False, True, False)
    assert harness.dtype_of(paddle.ones([1], "float16")) == "float16"
