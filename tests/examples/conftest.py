"""Runs the examples in one process per framework; two in one process can crash the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def _check_installed(framework: str) -> None:
    """Skip without ``framework``; fail if AMPBRIDGE_REQUIRE (a comma list) names it."""
    if find_spec(framework):
        return
    if framework in os.environ.get("AMPBRIDGE_REQUIRE", "").split(","):
        pytest.fail(f"AMPBRIDGE_REQUIRE names {framework}, which is not installed")
    pytest.skip(f"{framework} is not installed")


def _run_script(*command: object) -> str:
    """The standard output of a Python script, from which the examples can be imported.

    In one thread: these matrices are too small to share, and the machine may be busy.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(EXAMPLES),
        "PYTHONIOENCODING": "utf-8",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    finished = subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=900,
    )
    if finished.returncode:
        pytest.fail(f"{command} ended with {finished.returncode}:\n{finished.stderr[-4000:]}")
    return finished.stdout


@pytest.fixture(scope="session")
def check_installed() -> Callable[[str], None]:
    return _check_installed


@pytest.fixture(scope="session")
def run_script() -> Callable[..., str]:
    return _run_script


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Any]:
    """What ``<script>.py``, next to this file, measures in a framework; run once a session.

    Once, also if it fails: then every test that asks for it fails with the same message.
    """

    @cache
    def outcome(script: str, framework: str) -> tuple[Any, BaseException | None]:
        file = tmp_path_factory.mktemp(script) / f"{framework}.json"
        try:
            _run_script(Path(__file__).with_name(f"{script}.py"), framework, file)
        except pytest.fail.Exception as failure:
            return None, failure
        return json.loads(file.read_text()), None

    def measure(script: str, framework: str) -> Any:
        _check_installed(framework)
        values, failure = outcome(script, framework)
        if failure is not None:
            raise failure
        return values

    return measure
