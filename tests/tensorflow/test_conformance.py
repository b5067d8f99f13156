"""The conformance suite on TensorFlow."""

from ampbridge_testing import BackendConformance, import_or_skip

import_or_skip("tensorflow")
from ampbridge_tensorflow.testing import TensorFlowHarness  # noqa: E402


class TestTensorFlowBackend(BackendConformance):
    harness = TensorFlowHarness()
