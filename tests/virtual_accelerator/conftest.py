"""PyTorch in this process with the virtual device as that of an extension, compiled if need be."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_devices import as_new, pytest_configure, why_not
from without_device import check_required, skipped_module

__all__ = ["as_new", "pytest_configure"]  # which pytest finds here

WHY_NOT = why_not("virtual")

check_required("torch", WHY_NOT)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    return skipped_module(WHY_NOT, module_path, parent)
