"""The conformance suite: tests that every backend must pass. Needs pytest.

    from ampbridge_testing import BackendConformance
    from ampbridge_torch.testing import TorchHarness

    class TestTorchBackend(BackendConformance):
        harness = TorchHarness()

Write a test file for each framework, and run each in its own process, because TensorFlow and Paddle
cannot share one. A new backend needs a ``Harness`` that uses only its framework.
"""

from pkgutil import iter_modules

import pytest

# Without this, users of the suite would see a bare AssertionError and no values.
pytest.register_assert_rewrite(*(m.name for m in iter_modules(__path__, f"{__name__}.")))

from ampbridge_testing.conformance import BackendConformance  # noqa: E402
from ampbridge_testing.harness import Harness, as_number, attributes_of, contents  # noqa: E402
from ampbridge_testing.neutral import NeutralConformance  # noqa: E402
from ampbridge_testing.runner import import_or_skip, names_of_tests, outcomes  # noqa: E402

__all__ = [
    "BackendConformance",
    "Harness",
    "NeutralConformance",
    "as_number",
    "attributes_of",
    "contents",
    "import_or_skip",
    "names_of_tests",
    "outcomes",
]
