"""PyTorch in this process, on CUDA where there is one. The helpers stand beside the tests."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for recorder.py

if importlib.util.find_spec("torch") is None:
    if "torch" in os.environ.get("AMPBRIDGE_REQUIRE", ""):
        raise ImportError("AMPBRIDGE_REQUIRE asks for torch, which is not installed")
    collect_ignore_glob = ["test_*.py"]
else:
    import torch

    @pytest.fixture(autouse=True)
    def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Small tests are faster on one thread; graphs of one test are no other's."""
        # Dynamo times each graph's guards on flushed caches, for its logs: a third of what a graph costs.
        timer = "torch._dynamo.guards.profile_guard_manager"
        monkeypatch.setattr(timer, lambda *_: 0.0, raising=False)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        torch.manual_seed(0)
        torch.compiler.reset()
        yield
        torch.set_num_threads(threads)

    @pytest.fixture
    def process_group() -> Iterator[None]:
        """Of this process alone. What trained in it ends before it does.

        A DistributedDataParallel holds the group too. If the garbage collector ends both later, it waits
        for the group's thread, which waits for Python.
        """
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
        yield
        gc.collect()
        torch.distributed.destroy_process_group()


def pytest_configure(config: pytest.Config) -> None:
    # Once a process, so it would hit whichever test comes first; test_simulation.py looks for it in
    # a process of its own.
    config.addinivalue_line("filterwarnings", "ignore::ampbridge.errors.SimulationWarning")
    # Inductor's own imports, in torch 2.13: torch.utils.mkldnn still uses torch.jit.
    config.addinivalue_line("filterwarnings", "ignore:.torch.jit:DeprecationWarning")
    # Torch's own, once a process beside a GPU.
    for beginning in (
        "Attempting to run cuBLAS, but there was no current CUDA context",
        "Sparse invariant checks are implicitly disabled",
        r"\s*Online softmax is disabled",
        "TensorFloat32 tensor cores",
        "Warning. Profiler clears events",
    ):
        config.addinivalue_line("filterwarnings", f"ignore:{beginning}:UserWarning")


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(params=["bfloat16", "float16"])
def low(request: pytest.FixtureRequest) -> str:
    """The low precision of the policy."""
    name: str = request.param
    return name
