"""How the benchmarks measure, and on which machine.

Within one run all variants take turns, a few steps each, round after round; a figure is the median
over the rounds of (variant / baseline), so that a machine whose speed drifts does not decide. Every
model is made several times. The row "again" is the baseline a second time: what it differs from 1.000
by is what this machine cannot tell apart.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

# One thread everywhere: on shared cores the ratios of threads mean nothing. NumPy's BLAS reads this
# when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

FRAMEWORKS = ("torch", "tensorflow", "paddle", "jax", "numpy")

Step = Callable[[], object]
Maker = Callable[[], Step | None]
"""None where a package is missing."""
Times = dict[str, list[float]]
"""Seconds a step of each variant, round by round; the baseline is the first."""


def in_turns(timers: Mapping[str, Callable[[], float]], rounds: int) -> Times:
    """What each timer says, round by round."""
    times: Times = {name: [] for name in timers}
    order, random = list(timers), np.random.default_rng(0)
    for _ in range(rounds):
        random.shuffle(order)  # nobody always follows the same neighbour
        for name in order:
            times[name].append(timers[name]())
    return times


def seconds_of(step: Step, count: int = 1) -> float:
    """Seconds that a step takes, the mean of ``count`` in a row."""
    begin = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - begin) / count


def measure(
    steps: Mapping[str, Step], rounds: int, seconds: float, wait: Step | None = None
) -> Times:
    """Warm the steps up and time them in turns.

    Args:
        seconds: the length of one turn.
        wait: waits for the device after each step; None where steps do so by themselves.
    """
    if wait is not None:
        steps = {name: partial(_waited_for, step, wait) for name, step in steps.items()}
    repeats = []
    for step in steps.values():
        for _ in range(5):
            step()
        repeats.append(max(1, round(seconds / seconds_of(step))))
    timers = {name: partial(seconds_of, step, min(repeats)) for name, step in steps.items()}
    return in_turns(timers, rounds)


def _waited_for(step: Step, wait: Step) -> None:
    step()
    wait()


def measure_copies(
    makers: Mapping[str, Maker], options: argparse.Namespace, wait: Step | None = None
) -> tuple[Times, dict[str, Step]]:
    """``measure`` on several copies of the models; also returns the steps of the last copy.

    Two copies of one program differ by a few per cent, by where their memory happens to lie; what
    is made first lies best. So every copy makes another variant first.
    """
    times: Times = {}
    names = list(makers)
    for copy in range(options.copies):
        first = copy * len(names) // options.copies
        made = {name: makers[name]() for name in names[first:] + names[:first]}
        steps = {name: step for name in names if (step := made[name])}
        measured = measure(steps, options.rounds // options.copies, options.seconds, wait)
        for name, seconds in measured.items():
            times.setdefault(name, []).extend(seconds)
    return times, steps


class Figure(NamedTuple):
    """A variant's time: milliseconds, and median and quartiles of its ratios to the baseline's."""

    variant: str
    milliseconds: float
    ratio: float
    low: float
    high: float

    def cells(self, places: int = 3) -> tuple[str, ...]:
        """As a part of a row; ``places`` behind the point."""
        milliseconds, ratio, low, high = (f"{each:.{places}f}" for each in self[1:])
        return self.variant, milliseconds, ratio, f"{low} to {high}"


def figures(times: Times) -> list[Figure]:
    """A figure for each variant."""
    baseline = next(iter(times.values()))
    lines = []
    for variant, seconds in times.items():
        low, median, high = quartiles(seconds, baseline)
        lines.append(Figure(variant, 1000 * statistics.median(seconds), median, low, high))
    return lines


def quartiles(times: list[float], baseline: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile of the ratios, round by round."""
    ratios = [a / b for a, b in zip(times, baseline, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return low, median, high


def native(framework: str) -> Any:
    """The module of what is the framework's own; it sees to one thread, too."""
    return importlib.import_module(f"native_{framework}")


def machine(framework: str) -> str:
    """Versions, processor and cores, for the table's head."""
    version = importlib.import_module(framework).__version__
    return f"{framework} {version}, {native(framework).device}, {cpu()}"


def cpu() -> str:
    """The processor and its cores."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        models = (line.split(": ")[1] for line in lines if line.startswith("model name"))
        model = next(models, model)
    return f"{model}, {os.cpu_count()} cores"


def in_one_process_each(
    options: argparse.Namespace,
    run_here: Callable[[str, argparse.Namespace], None],
    frameworks: Sequence[str] = FRAMEWORKS,
) -> int:
    """Measure ``options.framework`` here, or every framework by this script; the exit status.

    TensorFlow and Paddle cannot share a process, and no framework should warm another's caches.
    """
    if options.framework:
        run_here(options.framework, options)
        return 0
    commands = ([sys.executable, *sys.argv, "--framework", name] for name in frameworks)
    return max(subprocess.run(command, check=False).returncode for command in commands)
