"""What the folders of tests on torch's virtual device share: whether there is one, and as new."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Literal

import pytest

from ampbridge.errors import UnsupportedError


def why_not(device_type: Literal["cuda", "virtual"]) -> str | None:
    """Why the process does not have the device, which is compiled if it has not been."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    from ampbridge_rehearse import virtual_cuda

    try:
        virtual_cuda.install(device_type)
    except UnsupportedError as error:
        return str(error)
    return None


def pytest_configure(config: pytest.Config) -> None:
    # The CPU's side of comparisons.
    config.addinivalue_line("filterwarnings", "ignore::ampbridge.errors.SimulationWarning")
    # Inductor's own imports, in torch 2.13: torch.utils.mkldnn still uses torch.jit.
    config.addinivalue_line("filterwarnings", "ignore:.torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def as_new() -> Iterator[None]:
    """Around each test: one thread, the same random numbers, nothing noted."""
    import torch

    from ampbridge_rehearse import virtual_cuda

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    virtual_cuda.forget()
    yield
    virtual_cuda.note_calls(False)
    virtual_cuda.on_wait(None)
    torch.set_num_threads(threads)
