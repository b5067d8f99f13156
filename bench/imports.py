"""How long ``import ampbridge`` takes, over ``import numpy`` alone.

    python bench/imports.py

Each import is that of a new process, in turns; of modules that are compiled already, as installed ones
are. Neither a framework nor a backend is imported by it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial

import measuring
import numpy as np
import page
from page import Findings

import ampbridge  # noqa: F401  # that it can be imported here

VARIANTS = {
    "numpy": "import numpy",
    "ampbridge": "import ampbridge",
    "numpy, again": "import numpy",
}
TIMED = "import time; begin = time.perf_counter(); {}; print(time.perf_counter() - begin)"


def measured(rounds: int) -> measuring.Times:
    """Seconds of each import, round by round, after one that compiles."""
    with tempfile.TemporaryDirectory() as compiled:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def seconds_of(statement: str) -> float:
            command = [sys.executable, "-c", TIMED.format(statement)]
            return float(subprocess.check_output(command, env=environment, text=True))

        timers = {name: partial(seconds_of, statement) for name, statement in VARIANTS.items()}
        measuring.in_turns(timers, 1)
        return measuring.in_turns(timers, rounds)


def main() -> None:
    options = page.parser(__doc__, rounds=30).parse_args()
    times = measured(options.rounds)
    rows = []
    for name, seconds in times.items():
        over = [1000 * (a - b) for a, b in zip(seconds, times["numpy"], strict=True)]
        low, median, high = statistics.quantiles(over, n=4)
        milliseconds = f"{1000 * statistics.median(seconds):.1f}"
        rows.append((name, milliseconds, f"{median:.1f}", f"{low:.1f} to {high:.1f}"))
    columns = ("imported", "ms", "ms over numpy", "quartiles")
    where = f"Python {sys.version.split()[0]}, numpy {np.__version__}, {measuring.cpu()}"
    page.report(Findings("imports", where, columns, [rows]), options)


if __name__ == "__main__":
    main()
