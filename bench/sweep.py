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
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import measuring
import numpy as np
import page
from measuring import FRAMEWORKS, machine
from page import Findings
from steps import Task

BATCH, WIDTH = 32, 16
COUNTS = {
    "parameters": (10, 30, 100, 300, 1000),
    "relu": (2, 5, 10, 20, 40),
    "linear": (2, 5, 10, 20, 40),
    "softmax": (2, 5, 10, 20, 40),
}


def task(framework: str, swept: str, count: int) -> Task:
    """Of so many parameters, or of a chain of so many ops."""
    native = measuring.native(framework)
    if swept == "parameters" and framework == "torch":
        return native.on_device(*native.many(count))
    random = np.random.default_rng(0)
    x = random.standard_normal((BATCH, WIDTH), dtype=np.float32)
    y = random.integers(0, WIDTH, BATCH)
    model = many(native, count) if swept == "parameters" else chain(native, swept, count)
    return native.task(model, x, y)


def many(native: Any, count: int) -> Any:
    """A model of so many parameters, whose sum multiplies the input."""
    names = [f"weight_{number}" for number in range(count)]

    class ManyParameters(native.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in names:
                setattr(self, name, native.weight(self, WIDTH))

        def forward(self, x: Any) -> Any:
            return x * native.add_n([getattr(self, name) for name in names])

        call = forward  # Keras' name for it

    return ManyParameters()


def chain(native: Any, op: str, count: int) -> Any:
    """A model of so many ops in a row."""

    class Chain(native.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = native.weight(self, WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            run = native.ops(self)[op]
            x = x * self.weight[0]
            for _ in range(count):
                x = run(x)
            return x

        call = forward  # Keras' name for it

    return Chain()


class Line(NamedTuple):
    """Microseconds of a step: ``fixed``, and ``each`` for every parameter or op."""

    each: float
    fixed: float


def line_through(counts: Sequence[int], microseconds: Sequence[float]) -> Line:
    """By least squares of the relative distance: a long step must not outweigh a short one."""
    each, fixed = np.polyfit(counts, microseconds, 1, w=1 / np.array(microseconds))
    return Line(float(each), float(fixed))


def lines(framework: str, swept: str, options: argparse.Namespace) -> dict[str, Line]:
    """Of every variant; with a scaler, which goes over the parameters, where those are swept."""
    native = measuring.native(framework)
    times: dict[str, list[float]] = {}
    counts = [count for count in COUNTS[swept] if count <= options.most]
    for count in counts:
        fresh = partial(task, framework, swept, count)
        made = native.compared(fresh, scaled=swept == "parameters")
        steps = {name: make() for name, make in made.items()}
        measured = measuring.measure(steps, options.rounds, options.seconds, native.wait)
        for name, seconds in measured.items():
            times.setdefault(name, []).append(1e6 * statistics.median(seconds))
    return {name: line_through(counts, each) for name, each in times.items()}


def run_here(framework: str, options: argparse.Namespace) -> None:
    """Measure one framework in this process and print its table."""
    sections, again = [], []
    for swept in options.swept:
        found = lines(framework, swept, options)
        baseline = next(iter(found.values()))
        again += [found[name].each / baseline.each for name in found if name.endswith(", again")]
        sections.append([row(swept, name, line, baseline) for name, line in found.items()])
    columns = ("sweep", "variant", "us each", "over baseline", "us besides", "over baseline")
    name = f"sweep {framework}"
    page.report(Findings(name, machine(framework), columns, sections, again), options)


def row(swept: str, name: str, line: Line, baseline: Line) -> tuple[str, ...]:
    more = f"{line.each - baseline.each:+.2f} ({line.each / baseline.each:.2f})"
    fixed = f"{line.fixed - baseline.fixed:+.0f}"
    return swept, name, f"{line.each:.2f}", more, f"{line.fixed:.0f}", fixed


def main() -> int:
    parser = page.parser(__doc__, FRAMEWORKS, rounds=30, seconds=0.01)
    parser.add_argument("--swept", nargs="+", choices=COUNTS, default=list(COUNTS))
    parser.add_argument("--most", type=int, default=1000, help="parameters or ops")
    return measuring.in_one_process_each(parser.parse_args(), run_here)


if __name__ == "__main__":
    sys.exit(main())
