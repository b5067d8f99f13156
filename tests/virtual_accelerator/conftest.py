"""PyTorch in this process with the virtual device as that of an extension, compiled if need be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from virtual_devices import as_new, ignore_simulation_warnings, why_not, without

WHY_NOT = why_not("virtual")


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    return without(WHY_NOT).from_parent(parent, path=module_path) if WHY_NOT else None


def pytest_configure(config: pytest.Config) -> None:
    ignore_simulation_warnings(config)


@pytest.fixture(autouse=True)
def _as_new() -> Iterator[None]:
    yield from as_new()
