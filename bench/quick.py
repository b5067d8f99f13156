"""Did a step become slower? Two minutes of the figures that a slowdown shows in first.

    python bench/quick.py            measures, compares with what was kept last, names what got worse
    python bench/quick.py --check    and ends with status 1 if anything did
    python bench/quick.py --keep     and adds the run to bench/history.json and to the page

A figure got worse if its lower quartile is above the upper one that was kept, by more than the
baselines of both runs differ from themselves. It is a ratio within a run; still, other processors
have other ratios: a run is compared with the last one of the same, if there is one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import imports
import page
from measuring import cpu, quartiles
from page import Findings

HISTORY = page.ROOT / "bench" / "history.json"
SHOWN = 4
"""Runs of the history on the page."""

MEASURED = {
    "torch": ["--workload", "tiny", "many", "--without", "compile", "deny", "O2", "Accelerate"],
    "tensorflow": ["--workload", "tiny", "--without", "deny", "float32", "fit"],
    "paddle": ["--workload", "tiny", "--without", "deny"],
    "numpy": ["--workload", "tiny", "mid"],
}
"""By framework, what overhead.py is asked for."""


class Figure(NamedTuple):
    """Of a variant's time over its baseline's: median and quartiles."""

    ratio: float
    low: float
    high: float


class Run(NamedTuple):
    """What was measured once.

    Attributes:
        noise: the most by which a baseline differed from itself.
        figures: by name.
    """

    version: str
    commit: str
    day: str
    machine: str
    load: float
    noise: float
    figures: Mapping[str, Figure]


def measured() -> Run:
    """Measure all now."""
    figures: dict[str, Figure] = {}
    for framework, options in MEASURED.items():
        figures |= by_overhead(framework, options)
    times = imports.measured(rounds=8)
    low, median, high = quartiles(times["ampbridge"], times["numpy"])
    figures["import ampbridge, over numpy's"] = Figure(median, low, high)
    again = {name for name in figures if name.endswith(", again")}
    return Run(
        version=version("ampbridge"),
        commit=page.commit(),
        day=page.today(),
        machine=cpu(),
        load=round(page.load(), 1),
        noise=max(abs(figures[name].ratio - 1) for name in again),
        figures={name: figure for name, figure in figures.items() if name not in again},
    )


def by_overhead(framework: str, options: Sequence[str]) -> dict[str, Figure]:
    """What overhead.py finds, in a process of its own."""
    script = str(Path(__file__).with_name("overhead.py"))
    with tempfile.TemporaryDirectory() as folder:
        told = f"{folder}/told"
        command = [sys.executable, script, "--framework", framework, "--json", told]
        rounds = ["--rounds", "48", "--copies", "2"]
        done = subprocess.run([*command, *rounds, *options], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{script} --framework {framework} failed:\n{done.stderr}")
        lines = json.loads(Path(f"{told}.{framework}.json").read_text("utf-8"))["figures"]
    return {
        f"{framework} {line['workload']}, {line['case']}: {line['variant']}": Figure(
            *(round(line[part], 3) for part in Figure._fields)
        )
        for line in lines
        if line["low"] != line["high"]  # as the baseline's are, of itself
    }


def worse(now: Run, before: Run) -> Iterator[str]:
    """The names of what got slower by more than its noise."""
    noise = 1 + now.noise + before.noise
    for name, figure in now.figures.items():
        kept = before.figures.get(name)
        if kept is not None and figure.low > kept.high * noise:
            yield name


def compared_with(runs: Sequence[Run], machine: str) -> Run | None:
    """The last one on this processor, or else the last one."""
    alike = [run for run in runs if run.machine == machine]
    return next(iter(reversed(alike or runs)), None)


def read_history() -> list[Run]:
    """The runs that were kept, the oldest first."""
    kept = json.loads(HISTORY.read_text("utf-8"))
    return [
        Run(**{**run, "figures": {name: Figure(*f) for name, f in run["figures"].items()}})
        for run in kept
    ]


def keep(runs: Sequence[Run]) -> None:
    HISTORY.write_text(json.dumps([run._asdict() for run in runs], indent=1) + "\n", "utf-8")


def findings(runs: Sequence[Run]) -> Findings:
    """The medians of the last runs beside each other."""
    last = runs[-SHOWN:]
    heads = [f"{run.version}, {run.commit}, {run.day}, noise {run.noise:.1%}" for run in last]
    names = list(dict.fromkeys(name for run in reversed(last) for name in run.figures))
    rows = [
        (name, *(f"{run.figures[name].ratio:.2f}" if name in run.figures else "" for run in last))
        for name in names
    ]
    return Findings("history", runs[-1].machine, ("over its baseline", *heads), [rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="status 1 if anything got worse")
    parser.add_argument("--keep", action="store_true", help="add the run to the history")
    options = parser.parse_args()
    runs, now = read_history(), measured()
    before = compared_with(runs, now.machine)
    page.show(findings([before, now] if before else [now]))
    slower = list(worse(now, before)) if before else []
    if before and before.machine != now.machine:
        print(f"The kept figures are those of another processor: {before.machine}.")
    for name in slower:
        print(f"Slower: {name}: {before.figures[name].ratio:.2f} -> {now.figures[name].ratio:.2f}")
    if options.keep:
        keep([*runs, now])
        page.keep(findings([*runs, now]))
    return int(options.check and bool(slower))


if __name__ == "__main__":
    sys.exit(main())
