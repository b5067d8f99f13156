"""What the lens costs while it looks: the time of a report over that of a plain eager pass.

    python bench/lens.py                      every framework, one process each
    python bench/lens.py --framework torch    one of them, in this process

A plain pass is `value_and_grad` under O1 on a batch of 128 of the digits' models. Measured as in
overhead.py: all variants take turns, a figure is the median of the paired ratios, "again" is the
baseline a second time.

    python bench/lens.py --monitor            a monitored training step over the step itself

There the baseline is a training step as `train_step` makes it, compiled where that is the default.
"every step" is a step with a look; a hundredth of what it takes more is the price of a look at every
100 steps. "between looks" is what a monitored step costs at all others.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

import measuring
import page
from measuring import FRAMEWORKS, Step, machine
from page import Findings

import ampbridge as amp
from ampbridge import lens, workloads


def looking(build: Any) -> dict[str, Step]:
    """The plain pass, and each report of the lens on a model of its own."""

    def made(look: Any) -> Step:
        workload = build()
        return partial(look, workload.loss_fn, workload.model, *workload.batches[0], policy="O1")

    def plain(*arguments: Any, **options: Any) -> float:
        loss, _ = amp.value_and_grad(*arguments, **options)
        return float(loss)  # waits for the device

    return {
        "plain pass": made(plain),
        "lens.census": made(partial(lens.census, passes=1)),
        "lens.ranges": made(lens.ranges),
        "lens.locate, all is sound": made(lens.locate),
        "plain pass, again": made(plain),
    }


def monitored(build: Any) -> dict[str, Step]:
    """A training step, and the same under ``lens.monitor``."""

    def made(every: int | None) -> Step:
        workload = build()
        step = amp.train_step(workload.loss_fn, workload.model, workload.optimizer, policy="O1")
        watched = step if every is None else lens.monitor(step, every=every)
        watched(*workload.batches[0])  # the first look
        return lambda: watched(*workload.batches[0]).loss

    return {
        "train_step": made(None),
        "lens.monitor, between looks": made(10**9),
        "lens.monitor, every step": made(1),
        "train_step, again": made(None),
    }


def run_here(framework: str, options: argparse.Namespace) -> None:
    """Measure one framework in this process and print its table."""
    where = machine(framework)  # which also sees to one thread
    sections = []
    for name in options.workload:
        build = partial(workloads.find(name), framework, 0)
        steps = (monitored if options.monitor else looking)(build)
        times = measuring.measure(steps, options.rounds, options.seconds)
        sections.append([(name, *line.cells(places=2)) for line in measuring.figures(times)])
    over = "over the step" if options.monitor else "over a plain pass"
    columns = ("workload", "variant", "ms", over, "quartiles")
    page.report(Findings(f"lens {framework}", where, columns, sections), options)


def main() -> int:
    parser = page.parser(__doc__, FRAMEWORKS, rounds=40, seconds=0.02)
    parser.add_argument(
        "--workload", nargs="+", choices=workloads.NAMES, default=list(workloads.NAMES)
    )
    parser.add_argument("--monitor", action="store_true", help="measure lens.monitor")
    return measuring.in_one_process_each(parser.parse_args(), run_here)


if __name__ == "__main__":
    sys.exit(main())
