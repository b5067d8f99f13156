"""PyTorch in this process with the virtual CUDA device, which is compiled if it has not been."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from without_device import check_required, skipped_module

from ampbridge.errors import UnsupportedError

HERE = Path(__file__).parent
# For what the folders of torch's tests and of the zoo have beside their tests.
sys.path[:0] = [str(HERE), *(str(HERE.parent / folder) for folder in ("torch", "zoo"))]


def _why_not() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    from ampbridge_torch import virtual_cuda

    try:
        virtual_cuda.install()
    except UnsupportedError as error:
        return str(error)
    return None


WHY_NOT = _why_not()

check_required("torch", WHY_NOT)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    return skipped_module(WHY_NOT, module_path, parent)


def pytest_configure(config: pytest.Config) -> None:
    # The CPU's side of comparisons.
    config.addinivalue_line("filterwarnings", "ignore::ampbridge.errors.SimulationWarning")


@pytest.fixture(autouse=True)
def _as_new() -> Iterator[None]:
    import torch

    from ampbridge_torch import virtual_cuda

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    virtual_cuda.forget()
    yield
    virtual_cuda.note_calls(False)
    virtual_cuda.on_wait(None)
    torch.set_num_threads(threads)
