"""The conformance suite on JAX."""

from ampbridge_jax.testing import JaxHarness
from ampbridge_testing import BackendConformance


class TestJaxBackend(BackendConformance):
    harness = JaxHarness()
