"""The conformance suite on PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
from nightly import NIGHTLY

from ampbridge.testing import BackendConformance, import_or_skip

torch = import_or_skip("torch")
from ampbridge_torch import _private  # noqa: E402
from ampbridge_torch.testing import TorchHarness  # noqa: E402


@pytest.fixture(autouse=True)
def _without_code_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are traced, guarded and differentiated, and run as they are: a C++ compiler takes minutes.

    Inductor's code is the subject of test_compile.py, and of this suite in the nightly profile.
    """
    if NIGHTLY:
        return
    as_they_are = torch._dynamo.lookup_backend("aot_eager")

    def aot_eager(graph: Any, inputs: list[Any], keeps_roundings: bool) -> Callable[..., Any]:
        run: Callable[..., Any] = as_they_are(graph, inputs)
        return run

    monkeypatch.setattr(_private, "inductor", aot_eager)


class TestTorchBackend(BackendConformance):
    harness = TorchHarness()


if torch.cuda.is_available():

    class TestTorchBackendOnCuda(BackendConformance):
        harness = TorchHarness(device="cuda")

else:

    @pytest.mark.skip(reason="needs a CUDA device")
    def test_the_whole_suite_on_cuda() -> None:
        """In place of some 270 skipped tests."""
