"""The conformance suite on PyTorch."""

import pytest

from ampbridge.testing import BackendConformance, import_or_skip

torch = import_or_skip("torch")
from ampbridge_torch.testing import TorchHarness  # noqa: E402


class TestTorchBackend(BackendConformance):
    harness = TorchHarness()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestTorchBackendOnCuda(BackendConformance):
    harness = TorchHarness(device="cuda")
