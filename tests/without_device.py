"""Folders of tests that need a virtual device, on a machine where it cannot be had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import required


def check_required(framework: str, why_not: str | None) -> None:
    """Raise if AMPBRIDGE_REQUIRE names the framework, whose device there is not."""
    if why_not is not None and framework in required():
        msg = f"AMPBRIDGE_REQUIRE asks for {framework}, and its virtual device: {why_not}"
        raise ImportError(msg)


def skipped_module(
    why_not: str | None, module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """In place of a module of tests, which could not be imported; None if there is a device."""
    if why_not is None:
        return None
    module: _Skipped = _Skipped.from_parent(parent, path=module_path)
    module.why_not = why_not
    return module


class _Skipped(pytest.Module):
    why_not: str

    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip(f"no virtual device: {self.why_not}", allow_module_level=True)
