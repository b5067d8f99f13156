"""Runs the examples in one process per framework; two in one process can crash the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

Job = Callable[[str], Any]
"""Something to do with a framework, by its name."""


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
def for_each_framework(request: pytest.FixtureRequest) -> Iterator[Callable[[Job], Job]]:
    """``for_each_framework(job)`` starts ``job(framework)`` for all that the chosen tests ask for.

    Two at a time, each once. What it returns waits for one of them: its value, or its failure.
    """
    parameters = [getattr(item, "callspec", None) for item in request.session.items]
    asked = [each.params.get("framework") for each in parameters if each is not None]
    frameworks = [f for f in dict.fromkeys(("numpy", *asked)) if f and find_spec(f)]
    pool = ThreadPoolExecutor(2)

    def start(job: Job) -> Job:
        running = {framework: pool.submit(job, framework) for framework in frameworks}

        def result(framework: str) -> Any:
            _check_installed(framework)
            return running[framework].result()

        return result

    yield start
    pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def measured(
    tmp_path_factory: pytest.TempPathFactory, for_each_framework: Callable[[Job], Job]
) -> Callable[[str, str], Any]:
    """What ``<script>.py``, next to this file, measures in a framework; run once a session."""

    @cache
    def measure(script: str) -> Job:
        folder = tmp_path_factory.mktemp(script)

        def job(framework: str) -> Any:
            file = folder / f"{framework}.json"
            _run_script(Path(__file__).with_name(f"{script}.py"), framework, file)
            return json.loads(file.read_text())

        return for_each_framework(job)

    return lambda script, framework: measure(script)(framework)
