"""``Policy(masters=...)`` on JAX."""

from kept_masters import KeptMasters

from ampbridge_testing import import_or_skip

import_or_skip("jax")
from ampbridge_jax.testing import JaxHarness  # noqa: E402


class TestMasters(KeptMasters):
    harness = JaxHarness()
