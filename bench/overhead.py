"""What ampbridge costs: the time of `train_step` over that of a hand-written native loop.

    python bench/overhead.py                      every framework, one process each
    python bench/overhead.py --framework torch    one of them, in this process

Within one run all variants take turns, a few steps each, round after round; a figure is the median
over the rounds of (variant / baseline), so that a machine whose speed drifts does not decide. Every
model is made several times. The row "again" is the baseline a second time: what it differs from 1.000
by is what this machine cannot tell apart. `--json FILE` keeps every round; `--without deny compile`
leaves out what has one of these words in its name.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

# One thread everywhere: on shared cores the ratios of threads mean nothing. NumPy's BLAS reads this
# when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import page
from page import Findings

sys.path.insert(0, str(Path(__file__).parent))

FRAMEWORKS = ("torch", "tensorflow", "paddle", "numpy")
WORKLOADS = ("tiny", "mid", "transformer")
OF_TORCH = ("bert", "llama", "unet", "many")
"""Workloads of models_of_others.py."""

Step = Callable[[], object]


class Shape(NamedTuple):
    """Sizes of one workload; ``width`` is d_model for the transformer."""

    batch: int
    features: int
    width: int
    layers: int
    classes: int = 10
    tokens: int = 0


SHAPES = {
    "tiny": Shape(batch=32, features=64, width=64, layers=2),
    "mid": Shape(batch=256, features=64, width=512, layers=2),
    "transformer": Shape(batch=8, features=128, width=128, layers=2, tokens=64),
}


class Case(NamedTuple):
    """Makers of the steps to compare, None where a package is missing; the first is the baseline."""

    title: str
    makers: dict[str, Callable[[], Step | None]]


def batch_of(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Random float32 inputs, (batch, features) or (batch, tokens, features), and int64 labels."""
    random = np.random.default_rng(0)
    size = (shape.batch, shape.tokens, shape.features) if shape.tokens else shape[:2]
    x = random.standard_normal(size, dtype=np.float32)
    return x, random.integers(0, shape.classes, shape.batch)


def measure(steps: dict[str, Step], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Seconds a step of each variant, round by round; ``seconds`` is the length of one turn."""
    repeats = {}
    for name, step in steps.items():
        for _ in range(5):
            step()
        start = time.perf_counter()
        step()
        repeats[name] = max(1, round(seconds / (time.perf_counter() - start)))
    count = min(repeats.values())
    times: dict[str, list[float]] = {name: [] for name in steps}
    order, random = list(steps), np.random.default_rng(0)
    for _ in range(rounds):
        random.shuffle(order)  # nobody always follows the same neighbour
        for name in order:
            step = steps[name]
            start = time.perf_counter()
            for _ in range(count):
                step()
            times[name].append((time.perf_counter() - start) / count)
    return times


class Figure(NamedTuple):
    """One line of the table: ratios to the baseline of the same case."""

    workload: str
    case: str
    variant: str
    milliseconds: float
    ratio: float
    low: float
    high: float

    def cells(self, places: int = 3) -> tuple[str, ...]:
        """As a row; ``places`` behind the point."""
        ratio, low, high = (f"{each:.{places}f}" for each in (self.ratio, self.low, self.high))
        milliseconds = f"{self.milliseconds:.{places}f}"
        return self.workload, self.case, self.variant, milliseconds, ratio, f"{low} to {high}"


def quartiles(times: list[float], baseline: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile of the ratios, round by round."""
    ratios = [a / b for a, b in zip(times, baseline, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return low, median, high


def figures(workload: str, case: str, times: dict[str, list[float]]) -> list[Figure]:
    """Median and quartiles of the paired ratios."""
    baseline = next(iter(times.values()))
    lines = []
    for variant, measured in times.items():
        low, median, high = quartiles(measured, baseline)
        ms = 1000 * statistics.median(measured)
        lines.append(Figure(workload, case, variant, ms, median, low, high))
    return lines


def machine(framework: str) -> str:
    """Processor, cores and versions, for the table's head."""
    version = importlib.import_module(framework).__version__
    adapter = importlib.import_module(f"overhead_{framework}")
    return f"{framework} {version}, {adapter.device()}, {cpu()}"


def cpu() -> str:
    """The processor and its cores."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        models = (line.split(": ")[1] for line in lines if line.startswith("model name"))
        model = next(models, model)
    return f"{model}, {os.cpu_count()} cores"


def measure_copies(
    framework: str, workload: str, options: argparse.Namespace
) -> dict[str, dict[str, list[float]]]:
    """Every case of a workload, measured on several copies of its models: case -> times.

    Two copies of one program differ by a few per cent, by where their memory happens to lie; what
    is made first lies best. So every copy makes another variant first.
    """
    cases = importlib.import_module(f"overhead_{framework}").cases
    merged: dict[str, dict[str, list[float]]] = {}
    for copy in range(options.copies):
        for case in cases(SHAPES.get(workload), workload):
            if _has_one(case.title, options.without):
                continue
            names = [name for name in case.makers if not _has_one(name, options.without)]
            first = copy * len(names) // options.copies
            made = {name: case.makers[name]() for name in names[first:] + names[:first]}
            steps = {name: step for name in names if (step := made[name])}
            times = measure(steps, options.rounds // options.copies, options.seconds)
            into = merged.setdefault(case.title, {name: [] for name in steps})
            for name, seconds in times.items():
                into[name] += seconds
    return merged


def _has_one(name: str, words: Iterable[str]) -> bool:
    return any(word in name for word in words)


def run_here(framework: str, options: argparse.Namespace) -> None:
    """Measure one framework in this process and print its table."""
    kept, sections, again = [], [], []
    for workload in options.workload:
        for title, times in measure_copies(framework, workload, options).items():
            lines = figures(workload, title, times)
            sections.append([line.cells() for line in lines])
            again += [line.ratio for line in lines if line.variant.endswith(", again")]
            kept += [{**line._asdict(), "rounds": times[line.variant]} for line in lines]
    columns = ("workload", "case", "variant", "ms a step", "ratio", "quartiles")
    of_others = not set(OF_TORCH).isdisjoint(options.workload)
    name = f"overhead {framework}, models of others" if of_others else f"overhead {framework}"
    page.report(Findings(name, machine(framework), columns, sections, again), options)
    if options.json:
        head = {"machine": machine(framework), "figures": kept}
        Path(f"{options.json}.{framework}.json").write_text(json.dumps(head, indent=1))


def in_one_process_each(
    options: argparse.Namespace, run_here: Callable[[str, argparse.Namespace], None]
) -> int:
    """Measure ``options.framework`` here, or every framework by this script; the exit status.

    TensorFlow and Paddle cannot share a process, and no framework should warm another's caches.
    """
    if options.framework:
        run_here(options.framework, options)
        return 0
    commands = ([sys.executable, *sys.argv, "--framework", name] for name in FRAMEWORKS)
    return max(subprocess.run(command, check=False).returncode for command in commands)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=FRAMEWORKS, help="measure it in this process")
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS + OF_TORCH)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--copies", type=int, default=4, help="of every model, among the rounds")
    parser.add_argument("--seconds", type=float, default=0.02, help="one turn of one variant")
    parser.add_argument("--without", nargs="+", default=[], metavar="WORD", help="in a name")
    page.add_option(parser)
    parser.add_argument("--json", help="keep every round in FILE.<framework>.json")
    return in_one_process_each(_with_workloads(parser), run_here)


def _with_workloads(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options; without --workload those that every framework has."""
    options = parser.parse_args()
    options.workload = options.workload or list(WORKLOADS)
    if options.framework != "torch" and not set(options.workload) <= set(WORKLOADS):
        parser.error(f"{', '.join(OF_TORCH)} are torch's: --framework torch")
    return options


if __name__ == "__main__":
    sys.exit(main())
