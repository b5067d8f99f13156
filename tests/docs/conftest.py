"""Documents are run in processes of their own: two frameworks in one process can crash it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUIET = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "NO_MKDOCS_2_WARNING": "1"}


def _run(*command: object, cwd: Path = ROOT) -> str:
    """The standard output of ``python command``; fails the test if it ends with an error."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, **QUIET},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    if done.returncode:
        pytest.fail(
            f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr[-4000:]}"
        )
    return done.stdout


def _check_installed(framework: str) -> None:
    """Skip without ``framework``; fail if AMPBRIDGE_REQUIRE (a comma list) names it."""
    if find_spec(framework):
        return
    if framework in os.environ.get("AMPBRIDGE_REQUIRE", "").split(","):
        pytest.fail(f"AMPBRIDGE_REQUIRE names {framework}, which is not installed")
    pytest.skip(f"{framework} is not installed")


@pytest.fixture(scope="session")
def run() -> Callable[..., str]:
    return _run


@pytest.fixture(scope="session")
def check_installed() -> Callable[[str], None]:
    return _check_installed


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: any warning ends it, and so does a failing tutorial."""
    folder = tmp_path_factory.mktemp("site")
    _run("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder)
    return folder
