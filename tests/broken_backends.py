"""Backends that break a promise each; the conformance suite has to fail them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SAMPLED = 4  # of so many, one is not slow


def suite_is_being_changed() -> bool:
    """Whether files of the suite differ from what was committed last."""
    status = ["git", "status", "--porcelain", "tools/ampbridge_testing"]
    try:
        return subprocess.run(status, cwd=ROOT, capture_output=True, check=True).stdout != b""
    except (OSError, subprocess.CalledProcessError):  # no repository
        return False


class BrokenBackends:
    """Parameters of a test: a backend, and the tests of the suite that must fail for it.

    A sample runs in `make test`: all of them, while the suite is being changed.
    """

    def __init__(self) -> None:
        self.cases: list[Any] = []
        self._all = suite_is_being_changed()

    def caught_by(self, *tests: str) -> Callable[[type], type]:
        """Note a broken backend, with the tests that must fail for it."""

        def note(backend: type) -> type:
            sampled = self._all or len(self.cases) % SAMPLED == 0
            marks = () if sampled else pytest.mark.slow
            self.cases.append(pytest.param(backend, tests, id=backend.__name__, marks=marks))
            return backend

        return note
