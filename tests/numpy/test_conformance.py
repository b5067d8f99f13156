"""The conformance suite on NumPy."""

from ampbridge.testing import BackendConformance, import_or_skip

import_or_skip("numpy")
from ampbridge_numpy.testing import NumPyHarness  # noqa: E402


class TestNumPyBackend(BackendConformance):
    harness = NumPyHarness()
