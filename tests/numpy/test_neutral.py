"""``ampbridge.neutral`` on NumPy."""

from ampbridge_testing import NeutralConformance, import_or_skip

import_or_skip("numpy")
from ampbridge_numpy.testing import NumpyHarness  # noqa: E402


class TestNeutral(NeutralConformance):
    harness = NumpyHarness()
