"""What ampbridge costs by the parameter and by the op: lines through times over their number.

    python bench/sweep.py                      every framework, one process each
    python bench/sweep.py --framework torch    one of them, in this process

All sizes are so small that a step's time is that of its host code. "parameters": a model of so many
parameters of 16 numbers each. "relu", "linear", "softmax": a chain of so many ops over 32 x 16 numbers,
of which the default lists name none, one to run in 16 bits, and one to run in float32. All variants of
a size take turns, as in overhead.py; a line goes through the medians of microseconds by least squares.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import page
from overhead import FRAMEWORKS, Step, in_one_process_each, machine, measure
from page import Findings

BATCH, WIDTH = 32, 16
COUNTS = {
    "parameters": (10, 30, 100, 300, 1000),
    "relu": (2, 5, 10, 20, 40),
    "linear": (2, 5, 10, 20, 40),
    "softmax": (2, 5, 10, 20, 40),
}

Makers = Mapping[str, Callable[[], Step]]
"""Of the steps to compare; the first is the baseline."""


class Line(NamedTuple):
    """Microseconds of a step: ``fixed``, and ``each`` for every parameter or op."""

    each: float
    fixed: float


def line_through(counts: Sequence[int], microseconds: Sequence[float]) -> Line:
    """By least squares of the relative distance: a long step must not outweigh a short one."""
    each, fixed = np.polyfit(counts, microseconds, 1, w=1 / np.array(microseconds))
    return Line(float(each), float(fixed))


def batch() -> tuple[np.ndarray, np.ndarray]:
    """Inputs (BATCH, WIDTH) in float32, and labels in int64."""
    random = np.random.default_rng(0)
    x = random.standard_normal((BATCH, WIDTH), dtype=np.float32)
    return x, random.integers(0, WIDTH, BATCH)


def lines(framework: str, swept: str, options: argparse.Namespace) -> dict[str, Line]:
    """Of every variant."""
    makers_of: Callable[[str, int], Makers] = importlib.import_module(f"sweep_{framework}").makers
    times: dict[str, list[float]] = {}
    counts = [count for count in COUNTS[swept] if count <= options.most]
    for count in counts:
        steps = {name: make() for name, make in makers_of(swept, count).items()}
        for name, seconds in measure(steps, options.rounds, options.seconds).items():
            times.setdefault(name, []).append(1e6 * statistics.median(seconds))
    return {name: line_through(counts, each) for name, each in times.items()}


def run_here(framework: str, options: argparse.Namespace) -> None:
    """Measure one framework in this process and print its table."""
    sections, again = [], []
    for swept in options.swept:
        found = lines(framework, swept, options)
        baseline = next(iter(found.values()))
        again += [found[name].each / baseline.each for name in found if name.endswith(", again")]
        sections.append([_row(swept, name, line, baseline) for name, line in found.items()])
    columns = ("sweep", "variant", "us each", "over baseline", "us besides", "over baseline")
    name = f"sweep {framework}"
    page.report(Findings(name, machine(framework), columns, sections, again), options)


def _row(swept: str, name: str, line: Line, baseline: Line) -> tuple[str, ...]:
    more = f"{line.each - baseline.each:+.2f} ({line.each / baseline.each:.2f})"
    fixed = f"{line.fixed - baseline.fixed:+.0f}"
    return swept, name, f"{line.each:.2f}", more, f"{line.fixed:.0f}", fixed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=FRAMEWORKS, help="measure it in this process")
    parser.add_argument("--swept", nargs="+", choices=COUNTS, default=list(COUNTS))
    parser.add_argument("--most", type=int, default=1000, help="parameters or ops")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0.01, help="one turn of one variant")
    page.add_option(parser)
    return in_one_process_each(parser.parse_args(), run_here)


if __name__ == "__main__":
    sys.exit(main())
