"""The conformance suite on the toy of the docs, whose adapter claims no role."""

from pebble_harness import PebbleHarness

from ampbridge_testing import BackendConformance


class TestPebbleBackend(BackendConformance):
    harness = PebbleHarness()
