"""How long ``import ampbridge`` takes, over ``import numpy`` alone.

    python bench/imports.py

Each import is that of a new process, in turns; of modules that are compiled already, as installed ones
are. Neither a framework nor a backend is imported by it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

import numpy as np
import page
from overhead import cpu
from page import Findings

import ampbridge  # noqa: F401  # that it can be imported here

VARIANTS = {
    "numpy": "import numpy",
    "ampbridge": "import ampbridge",
    "numpy, again": "import numpy",
}
TIMED = "import time; begin = time.perf_counter(); {}; print(time.perf_counter() - begin)"


def measured(rounds: int) -> dict[str, list[float]]:
    """Seconds of each import, round by round, after one that compiles."""
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    order, random = list(VARIANTS), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as compiled:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for number in range(rounds + 1):
            random.shuffle(order)
            for name in order:
                seconds = _seconds(VARIANTS[name], environment)
                if number:
                    times[name].append(seconds)
    return times


def _seconds(statement: str, environment: dict[str, str]) -> float:
    command = [sys.executable, "-c", TIMED.format(statement)]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(told.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    page.add_option(parser)
    options = parser.parse_args()
    times = measured(options.rounds)
    rows = []
    for name, seconds in times.items():
        over = [1000 * (a - b) for a, b in zip(seconds, times["numpy"], strict=True)]
        low, median, high = statistics.quantiles(over, n=4)
        milliseconds = f"{1000 * statistics.median(seconds):.1f}"
        rows.append((name, milliseconds, f"{median:.1f}", f"{low:.1f} to {high:.1f}"))
    columns = ("imported", "ms", "ms over numpy", "quartiles")
    where = f"Python {sys.version.split()[0]}, numpy {np.__version__}, {cpu()}"
    page.report(Findings("imports", where, columns, [rows]), options)


if __name__ == "__main__":
    main()
