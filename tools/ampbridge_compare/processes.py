"""A process for each job, two at a time: frameworks that share one can crash it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ampbridge.adapters import registry
from ampbridge.workloads.processes import environment
from ampbridge_compare.runs import RUN, Job, Run

AT_ONCE = 2

Tell = Callable[[Job, str], None]
"""Told which job does what: "waiting", "starting", "gradients", "step 12", "done", "failed"."""


class _Started:
    """The processes that were started; after ``end`` none lives on, whichever thread starts it."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._ended = False
        self._lock = threading.Lock()

    def add(self, process: subprocess.Popen[str]) -> None:
        with self._lock:
            self._processes.append(process)
            if self._ended:
                process.kill()

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for process in self._processes:
                process.kill()


def run_all(jobs: Sequence[Job], tell: Tell) -> list[Run]:
    """What came of each job, in their order. One that fails is a run with an error."""
    return [run for (run,) in run_groups([[job] for job in jobs], tell)]


def run_groups(groups: Sequence[Sequence[Job]], tell: Tell) -> list[list[Run]]:
    """The same for groups of jobs of one backend, which share a process."""
    started = _Started()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            return list(pool.map(partial(_run, tell=tell, started=started), groups))
        except BaseException:  # whoever interrupts us waits for none of them
            pool.shutdown(wait=False, cancel_futures=True)
            started.end()
            raise


def _run(jobs: Sequence[Job], tell: Tell, started: _Started) -> list[Run]:
    runs = _missing(jobs) or _in_a_process(jobs, tell, started)
    tell(jobs[0], "failed" if all(run.error for run in runs) else "done")
    return runs


def _missing(jobs: Sequence[Job]) -> list[Run]:
    """Runs that failed before they began, where the framework is not installed."""
    backend = jobs[0].backend
    if registry.backends()[backend] != "not installed":
        return []
    msg = f"{backend} is not installed.\nHint: pip install 'ampbridge[{backend}]'"
    return [Run.failed(job, msg) for job in jobs]


def _in_a_process(jobs: Sequence[Job], tell: Tell, started: _Started) -> list[Run]:
    with tempfile.TemporaryDirectory(prefix="ampbridge-compare-") as name:
        folders = [Path(name, str(number)) for number in range(len(jobs))]
        for job, folder in zip(jobs, folders, strict=True):
            folder.mkdir()
            job.save(folder)
        with Path(name, "stderr").open("w+", encoding="utf-8", errors="replace") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "ampbridge_compare.worker", *map(str, folders)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                encoding="utf-8",
                env=environment(AT_ONCE),
            )
            started.add(process)
            with process:  # waits for it, and closes its pipe
                assert process.stdout is not None
                for line in process.stdout:
                    tell(jobs[0], json.loads(line)["doing"])
            stderr.seek(0)
            last = (stderr.read().strip().splitlines() or ["it said nothing"])[-1]
            hint = f"ampbridge doctor --framework {jobs[0].backend}"
            crash = f"The process ended with {process.returncode}: {last}\nHint: {hint}"
            return [
                Run.load(folder) if (folder / RUN).exists() else Run.failed(job, crash)
                for job, folder in zip(jobs, folders, strict=True)
            ]
