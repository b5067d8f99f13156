"""``Policy(masters=..., slots=...)`` on JAX."""

from typing import Any

from kept_masters import KeptSlots

from ampbridge_testing import import_or_skip

import_or_skip("jax")
from ampbridge_jax import optimizers  # noqa: E402
from ampbridge_jax.testing import JaxHarness  # noqa: E402


class TestMasters(KeptSlots):
    harness = JaxHarness()

    def moments(self, optimizer: Any) -> list[Any]:
        return [slot[...] for _, slot in optimizers.slots(optimizer) if slot.ndim]
