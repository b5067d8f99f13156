"""The conformance suite on PyTorch."""

import pytest
import traced_graphs
from nightly import NIGHTLY

from ampbridge_testing import BackendConformance, import_or_skip

torch = import_or_skip("torch")
from ampbridge_torch import _private  # noqa: E402
from ampbridge_torch.testing import TorchHarness  # noqa: E402


@pytest.fixture(autouse=True)
def _without_code_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if not NIGHTLY:
        monkeypatch.setattr(_private, "inductor", traced_graphs.aot_eager)


class TestTorchBackend(BackendConformance):
    harness = TorchHarness()


if torch.cuda.is_available():

    class TestTorchBackendOnCuda(BackendConformance):
        harness = TorchHarness(device="cuda")

else:

    @pytest.mark.skip(reason="needs a CUDA device")
    def test_the_whole_suite_on_cuda() -> None:
        """In place of some 270 skipped tests."""
