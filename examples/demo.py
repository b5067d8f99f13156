"""Float32 beside O1 float16 on the handwritten digits, with nothing but NumPy: ``make demo``.

    python examples/demo.py --policy O2:bfloat16

The loss scale starts far too high, at 2^24, to give the scaler something to do: the first steps
overflow float16 and are skipped, the scale backs off until the gradients fit, and after every run
of good steps it grows again, now and then too far.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import log2
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text
from threadpoolctl import threadpool_limits  # comes with scikit-learn
from train import train

import ampbridge as amp
from ampbridge.reports.printing import Table
from ampbridge.workloads import digits

STEPS = 600
INIT_SCALE = 2.0**24
GROWTH_INTERVAL = 60
LAST_STEPS = 50  # the table's loss is the mean over these

BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
HISTORY_COLUMNS = 60


class Outcome(NamedTuple):
    """One training run: a value a step, then what it came to."""

    losses: list[float]
    scales: list[float]
    applied: list[bool]
    accuracy: float
    seconds: float

    @property
    def skipped(self) -> int:
        return self.applied.count(False)

    @property
    def scaled(self) -> bool:
        return self.scales[0] != 1.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Train twice, then compare."""
    policy = parse(arguments).policy
    name = f"{policy.level} {policy.dtype}"
    console = Console(highlight=False)
    training, test = digits.load("mlp")
    console.print(
        f"Handwritten digits on the NumPy backend: {len(training.y)} to learn from, "
        f"{len(test.y)} to test on.\n"
    )
    scaled: dict[str, Any] = {}
    if policy.needs_scaling:
        scaled["scaler"] = amp.GradScaler(INIT_SCALE, growth_interval=GROWTH_INTERVAL)
    # One thread: matrices this small are not faster on several, and far slower on a busy machine.
    with threadpool_limits(1), live_progress(console) as progress:
        full = run(progress, "float32", policy="O0")
        mixed = run(progress, name, policy=policy, **scaled)
    console.print()
    comparison(full, mixed, name).print(console.file)
    console.print()
    if scaled:
        console.print(scale_history(mixed, policy.level, console))
    console.print(
        f"NumPy has no fast {policy.dtype}: it costs time here, which it saves on a GPU.\n"
        "The same loop elsewhere: python examples/train.py --backend torch",
        style="dim",
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--policy", default="O1:float16", help="O1, O2, O2:bfloat16, ... (default: %(default)s)"
    )
    args = parser.parse_args(arguments)
    try:
        args.policy = amp.Policy.parse(args.policy)
    except amp.AmpBridgeError as error:
        parser.error(str(error))
    return args


def live_progress(console: Console) -> Progress:
    """A bar for each run; in a log, where nothing can be redrawn, ``run`` prints lines instead."""
    return Progress(
        TextColumn("{task.description:10}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        console=console,
        expand=True,
        disable=not console.is_terminal,
    )


def run(progress: Progress, title: str, **settings: Any) -> Outcome:
    """Train the digits' MLP with ``settings``, showing how it goes."""
    task = progress.add_task(title, total=STEPS, state="")
    losses: list[float] = []
    scales: list[float] = []
    applied: list[bool] = []

    def report(result: amp.StepResult) -> None:
        losses.append(result.loss)
        scales.append(result.scale)
        applied.append(result.applied)
        state = f"loss {result.loss:.4f}"
        if "scaler" in settings:
            state += f"  scale {power(result.scale):4}  skipped {applied.count(False):2}"
        progress.update(task, advance=1, state=state)
        if progress.disable and result.step % 100 == 0:
            progress.console.print(f"{title:10}  step {result.step}  {state}")

    start = perf_counter()
    accuracy = train("numpy", "mlp", steps=STEPS, report=report, **settings).accuracy
    return Outcome(losses, scales, applied, accuracy, perf_counter() - start)


def comparison(full: Outcome, mixed: Outcome, name: str) -> Table:
    """The two runs beside each other."""
    runs = (full, mixed)
    rows = (
        (f"loss, last {LAST_STEPS} steps", *(f"{final_loss(run):.4f}" for run in runs)),
        ("test accuracy", *(f"{run.accuracy:.1%}" for run in runs)),
        ("skipped steps", *(f"{run.skipped} of {STEPS}" for run in runs)),
        ("final scale", *(power(run.scales[-1]) if run.scaled else "none" for run in runs)),
        ("time", *(f"{run.seconds:.1f} s" for run in runs)),
    )
    return Table("", ("", "float32", name), rows)


def final_loss(outcome: Outcome) -> float:
    return float(np.mean(outcome.losses[-LAST_STEPS:]))


def scale_history(outcome: Outcome, level: str, console: Console) -> Text:
    """The scale over the steps as a line of blocks, and under it how many steps were skipped."""
    blocks = BLOCKS if console.encoding.startswith("utf") else ASCII_BLOCKS
    exponents = np.log2(outcome.scales)
    low, high = exponents.min(), exponents.max()
    heights = np.round((exponents - low) / max(high - low, 1.0) * (len(blocks) - 1)).astype(int)
    width = STEPS // HISTORY_COLUMNS
    skips = np.logical_not(outcome.applied).reshape(HISTORY_COLUMNS, width).sum(axis=1)
    line = "".join(blocks[height] for height in heights[::width])
    marks = "".join(str(min(n, 9)) if n else " " for n in skips)
    return Text.assemble(
        f"Loss scale of {level}, from 2^{low:g} to 2^{high:g}; a column is {width} steps\n",
        ("  scale    ", "dim"),
        (line, "cyan"),
        ("\n  skipped  ", "dim"),
        (marks, "red"),
        "\n",
    )


def power(scale: float) -> str:
    return f"2^{log2(scale):g}"


if __name__ == "__main__":
    main()
