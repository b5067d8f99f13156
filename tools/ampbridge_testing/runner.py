"""Running the suite: where a framework may be absent, and against a backend that should fail it."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from ampbridge_testing.conformance import BackendConformance
from ampbridge_testing.harness import Harness


def import_or_skip(framework: str) -> ModuleType:
    """Import ``framework``, or skip the calling module's tests if it is not installed.

    For frameworks in the environment variable AMPBRIDGE_REQUIRE ("torch,paddle") it is an error
    instead.
    """
    if framework in os.environ.get("AMPBRIDGE_REQUIRE", "").split(","):
        return importlib.import_module(framework)
    module: ModuleType = pytest.importorskip(framework)
    return module


def outcomes(harness: Harness, tests: Sequence[str] = ()) -> dict[str, str]:
    """Run the suite, or only ``tests`` of it, against ``harness`` within this process.

    This is for tests of the suite itself: a broken backend must fail it.

    Returns:
        For each test "skipped", "passed", "failed", or "error" if its setup failed; for a test with
        several cases, the last of these that occurred. Once a case has failed, the others are left out.
    """
    left_out = dict.fromkeys(set(names_of_tests()).difference(tests), None) if tests else {}
    suite = type("TestBackend", (BackendConformance,), {"harness": harness, **left_out})
    recorder = _Recorder(suite)
    # Not the caller's configuration: the same runs everywhere, and warnings are errors.
    isolation = ["-c", os.devnull, "--rootdir", os.path.dirname(__file__), "-W", "error"]
    speed = [
        f"-pno:{plugin}" for plugin in ("cacheprovider", "faulthandler", "unraisableexception")
    ]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.MonkeyPatch.context() as environment:
        environment.delenv("PYTEST_ADDOPTS", raising=False)
        status = pytest.main([*isolation, *speed, __file__], plugins=[recorder])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(output.getvalue())
    return recorder.outcomes


def names_of_tests() -> list[str]:
    """Every test of the suite."""
    return [name for name in dir(BackendConformance) if name.startswith("test_")]


def _name_of_test(nodeid: str) -> str:
    return nodeid.rpartition("::")[2].partition("[")[0]


class _Recorder:
    """Gives pytest a module that contains only ``suite``, and records the outcome of each test."""

    _RANKS = ("skipped", "passed", "failed", "error")

    def __init__(self, suite: type) -> None:
        self._suite = suite
        self.outcomes: dict[str, str] = {}

    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> object:
        return _Module.from_parent(parent, path=module_path, suite=self._suite)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self.outcomes.get(_name_of_test(item.nodeid)) in ("failed", "error"):
            pytest.skip("another case of this test has failed")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        name = _name_of_test(report.nodeid)
        outcome = "error" if report.failed and report.when != "call" else report.outcome
        self.outcomes[name] = max(
            self.outcomes.get(name, "skipped"), outcome, key=self._RANKS.index
        )


class _Module(pytest.Module):
    def __init__(self, *, suite: type, **node: object) -> None:
        super().__init__(**node)  # type: ignore[arg-type]
        self._suite = suite

    def _getobj(self) -> ModuleType:
        module = ModuleType(self.name)
        setattr(module, self._suite.__name__, self._suite)
        return module
