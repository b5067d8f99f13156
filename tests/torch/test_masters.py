"""``Policy(masters=...)`` on torch."""

from kept_masters import KeptMasters

from ampbridge_testing import import_or_skip

import_or_skip("torch")
from ampbridge_torch.testing import TorchHarness  # noqa: E402


class TestMasters(KeptMasters):
    harness = TorchHarness()
