"""Scripts in processes of their own: two frameworks in one process can crash it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# One thread: the matrices of tests are too small to share, and the machine may be busy.
QUIET = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "PYTHONIOENCODING": "utf-8",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def run_python(
    *command: object,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """The standard output of ``python command``; fails the test if it ends with an error."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, **QUIET, **(environment or {})},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        what = f"{command} ended with {done.returncode}"
        pytest.fail(f"{what}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def wait_until(holds: Callable[[], Any]) -> Any:
    """What ``holds()`` returns as soon as that is true. It sets no limit: the suite's watchdog does."""
    while not (found := holds()):
        time.sleep(0.01)
    return found


def required() -> set[str]:
    """The frameworks that must be there, by AMPBRIDGE_REQUIRE, a comma list."""
    return set(os.environ.get("AMPBRIDGE_REQUIRE", "").split(","))


def check_installed(framework: str) -> None:
    """Skip without ``framework``; fail if AMPBRIDGE_REQUIRE names it."""
    if find_spec(framework):
        return
    if framework in required():
        pytest.fail(f"AMPBRIDGE_REQUIRE names {framework}, which is not installed")
    pytest.skip(f"{framework} is not installed")
