"""The conformance suite on PaddlePaddle."""

from ampbridge_testing import BackendConformance, import_or_skip

import_or_skip("paddle")
from ampbridge_paddle.testing import PaddleHarness  # noqa: E402


class TestPaddleBackend(BackendConformance):
    harness = PaddleHarness()
