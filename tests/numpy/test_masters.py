"""``Policy(masters=..., slots=...)`` on NumPy."""

from typing import Any

from kept_masters import KeptSlots, Trajectories

from ampbridge_testing import import_or_skip

import_or_skip("numpy")
from ampbridge_numpy.testing import NumpyHarness  # noqa: E402


class TestMasters(KeptSlots, Trajectories):
    harness = NumpyHarness()
    bytes_of_low_slots = 4  # 16-bit values in float32 arrays

    def moments(self, optimizer: Any) -> list[Any]:
        return [
            slot for state in optimizer.state for slot in state.values() if hasattr(slot, "shape")
        ]
