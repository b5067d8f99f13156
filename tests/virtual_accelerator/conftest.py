"""PyTorch in this process with the virtual device as that of an extension, compiled if need be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from virtual_devices import as_new, why_not
from without_device import check_required, skipped_module

WHY_NOT = why_not("virtual")

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
    yield from as_new()
