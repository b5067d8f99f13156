"""PyTorch in this process with the virtual CUDA device, which is compiled if it has not been."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from virtual_devices import as_new, pytest_configure, why_not
from without_device import check_required, skipped_module

HERE = Path(__file__).parent
# For what the folders of torch's tests and of the zoo have beside their tests.
sys.path[:0] = [str(HERE), *(str(HERE.parent / folder) for folder in ("torch", "zoo"))]

__all__ = ["as_new", "pytest_configure"]  # which pytest finds here

WHY_NOT = why_not("cuda")

check_required("torch", WHY_NOT)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    return skipped_module(WHY_NOT, module_path, parent)
