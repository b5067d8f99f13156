"""The conformance suite on NumPy."""

from ampbridge_testing import BackendConformance, import_or_skip

import_or_skip("numpy")
from ampbridge_numpy.testing import NumpyHarness  # noqa: E402


class TestNumpyBackend(BackendConformance):
    harness = NumpyHarness()
