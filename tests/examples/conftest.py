"""Runs the examples in one process per framework; two in one process can crash the interpreter."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from processes import check_installed, run_python

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

Job = Callable[[str], Any]
"""Something to do with a framework, by its name."""

# The last of them may say which copy of ampbridge is tested.
PATHS = [str(EXAMPLES), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
run_example = partial(run_python, environment={"PYTHONPATH": os.pathsep.join(filter(None, PATHS))})


@pytest.fixture(scope="session")
def run_script() -> Callable[..., str]:
    """``run_script(file, *options)``: what a script that can import the examples prints."""
    return run_example


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
            check_installed(framework)
            return running[framework].result()

        return result

    yield start
    pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def measured(
    tmp_path_factory: pytest.TempPathFactory, for_each_framework: Callable[[Job], Job]
) -> Callable[..., Any]:
    """What ``<script>.py <options>``, next to this file, measures in a framework; run once a session."""

    @cache
    def measure(script: str, *options: str) -> Job:
        folder = tmp_path_factory.mktemp(script)

        def job(framework: str) -> Any:
            file = folder / f"{framework}.json"
            run_example(Path(__file__).with_name(f"{script}.py"), framework, file, *options)
            return json.loads(file.read_text())

        return for_each_framework(job)

    return lambda script, framework, *options: measure(script, *options)(framework)
