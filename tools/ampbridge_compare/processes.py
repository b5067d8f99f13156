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
    started = _Started()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            return list(pool.map(partial(_run, tell=tell, started=started), jobs))
        except BaseException:  # whoever interrupts us waits for none of them
            pool.shutdown(wait=False, cancel_futures=True)
            started.end()
            raise


def _run(job: Job, tell: Tell, started: _Started) -> Run:
    run = _missing(job) or _in_a_process(job, tell, started)
    tell(job, "failed" if run.error else "done")
    return run


def _missing(job: Job) -> Run | None:
    """A run that failed before it began, where the framework is not installed."""
    if registry.backends()[job.backend] != "not installed":
        return None
    msg = f"{job.backend} is not installed.\nHint: pip install 'ampbridge[{job.backend}]'"
    return Run.failed(job, msg)


def _in_a_process(job: Job, tell: Tell, started: _Started) -> Run:
    with tempfile.TemporaryDirectory(prefix="ampbridge-compare-") as name:
        folder = Path(name)
        job.save(folder)
        with (folder / "stderr").open("w+", encoding="utf-8", errors="replace") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "ampbridge_compare.worker", name],
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
                    tell(job, json.loads(line)["doing"])
            code = process.returncode
            if (folder / RUN).exists():
                return Run.load(folder)
            stderr.seek(0)
            last = (stderr.read().strip().splitlines() or ["it said nothing"])[-1]
            hint = f"ampbridge doctor --framework {job.backend}"
            return Run.failed(job, f"The process ended with {code}: {last}\nHint: {hint}")
