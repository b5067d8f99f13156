"""Comparisons that were really run, and a browser to look at their pages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from browser import Browser
from processes import required


@pytest.fixture(scope="session")
def backends() -> list[str]:
    """Those whose frameworks are installed; AMPBRIDGE_REQUIRE names those that must be."""
    names = ["numpy", "torch", "tensorflow", "paddle", "jax"]
    missing = [name for name in names if find_spec(name) is None]
    if asked_for := required() & set(missing):
        pytest.fail(f"AMPBRIDGE_REQUIRE names {sorted(asked_for)}, which are not installed")
    return [name for name in names if name not in missing]


@pytest.fixture(scope="session")
def ran(
    backends: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """What ``ampbridge compare`` said of the digits' transformer, and the folder that it wrote."""
    folder = tmp_path_factory.mktemp("compare") / "written"
    command = ["-m", "ampbridge", "compare", "digits", "--native", "--steps", "40"]
    command += ["--workload", "digits-transformer", "--backends", ",".join(backends)]
    done = subprocess.run(
        [sys.executable, *command, "--output", str(folder)],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return done, folder


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "ran" in getattr(item, "fixturenames", ()):  # every framework, and a float64 reference
            item.add_marker(pytest.mark.slow)
