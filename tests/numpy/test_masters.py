"""``Policy(masters=...)`` on NumPy."""

from kept_masters import KeptMasters

from ampbridge_testing import import_or_skip

import_or_skip("numpy")
from ampbridge_numpy.testing import NumpyHarness  # noqa: E402


class TestMasters(KeptMasters):
    harness = NumpyHarness()
