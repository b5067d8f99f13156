"""The conformance suite on PyTorch."""

import pytest

from ampbridge.testing import BackendConformance, import_or_skip

torch = import_or_skip("torch")
from ampbridge_torch.testing import TorchHarness  # noqa: E402


class TestTorchBackend(BackendConformance):
    harness = TorchHarness()


if torch.cuda.is_available():

    class TestTorchBackendOnCuda(BackendConformance):
        harness = TorchHarness(device="cuda")

else:

    @pytest.mark.skip(reason="needs a CUDA device")
    def test_the_whole_suite_on_cuda() -> None:
        """In place of some 270 skipped tests."""
