"""Run targets of make, four at a time; tell what each said when it has ended, and then a line for each.

Below the line of a group that failed stand its tests that failed, and where one stood that did not
end: a log of which only the end is kept still names them. The last tables compare the CPU time of each
group and the twenty slowest tests with those kept in tests/times.json. A time never fails a run.

    python scripts/run_groups.py lint types test-core
    python scripts/run_groups.py --keep lint types test-core     # and keep their times

Goes on after a group that fails, and exits with 1 at the end. Needs Python alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import NamedTuple

TIMES = Path(__file__).parents[1] / "tests" / "times.json"
AT_ONCE = 4  # each computes on one core and waits now and then: fewer would leave two cores idle
COUNTS = re.compile(
    r"^=*\s*((?:\d+ [a-z]+, )*\d+ (?:passed|failed)[^=]*?) in [\d.]+s", re.MULTILINE
)
MISSING = re.compile(
    r"^SKIPPED \[\d+\] .*?: ([\w. ]+ is not installed|could not import '\w+')", re.M
)
# Pytest's summary; and of what faulthandler prints each thread's innermost call, and those in tests.
FAILURES = re.compile(
    r"^(?:FAILED|ERROR) \S.*|^(?:Current t|T)hread .*\n.*|^  File \".*?\btests/.*?\", line \d+ in .*",
    re.MULTILINE,
)
MOST_FAILURES = 20
SLOWEST = 20
DURATION = re.compile(r"^([\d.]+)s (?:call|setup|teardown) +(\S.*)$", re.MULTILINE)


class Group(NamedTuple):
    """A target that has ended. Times are in seconds; ``cpu`` is that of all its processes."""

    name: str
    passed: bool
    wall: float
    cpu: float
    said: str

    def __str__(self) -> str:
        words = "passed" if self.passed else "FAILED"
        counts = "; ".join(COUNTS.findall(self.said))
        missing = "; ".join(sorted(f"skipped: {why}" for why in set(MISSING.findall(self.said))))
        told = "; ".join(filter(None, (counts, missing)))
        line = f"{words}  {self.name:<20} {self.wall:5.0f} s  {told}".rstrip()
        failures = [] if self.passed else FAILURES.findall(self.said)[:MOST_FAILURES]
        return "\n".join([line, *failures])


class Times(NamedTuple):
    """What was kept: CPU seconds and a budget of them for each group, and the slowest tests."""

    cpu: dict[str, float]
    budget: dict[str, float]
    slowest: dict[str, float]


def run(name: str) -> Group:
    begin = time.monotonic()
    process = subprocess.Popen(
        ["make", "--no-print-directory", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTEST_ADDOPTS": with_durations(os.environ.get("PYTEST_ADDOPTS", ""))},
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu = used.ru_utime + used.ru_stime
    group = Group(name, process.returncode == 0, time.monotonic() - begin, cpu, said)
    print(f"\n== {name}\n{group.said}", end="", flush=True)
    return group


def with_durations(options: str) -> str:
    return f"{options} --durations={SLOWEST} --durations-min=1"


def slowest_of(groups: Iterable[Group]) -> dict[str, float]:
    """Seconds of the slowest tests, with what was set up for them; the slowest first."""
    found: dict[str, float] = {}
    for group in groups:
        for took, name in DURATION.findall(group.said):
            found[name] = found.get(name, 0.0) + float(took)
    return dict(sorted(found.items(), key=lambda each: -each[1])[:SLOWEST])


# -- what is kept


def read_times() -> Times:
    return Times(**json.loads(TIMES.read_text("utf-8"))) if TIMES.exists() else Times({}, {}, {})


def keep(groups: Iterable[Group], kept: Times) -> None:
    """Times of other groups stay, and budgets do: those are set by hand."""
    cpu = {**kept.cpu, **{group.name: round(group.cpu) for group in groups}}
    slowest = {name: round(took, 1) for name, took in slowest_of(groups).items()}
    TIMES.write_text(
        json.dumps(Times(cpu, kept.budget, slowest)._asdict(), indent=1) + "\n", "utf-8"
    )


def compared(groups: Iterable[Group], kept: Times) -> str:
    """The two tables. A group says so if it is over its budget on a machine as slow as this one."""
    groups = list(groups)
    known = [group for group in groups if kept.cpu.get(group.name, 0) >= 1]
    pace = median([group.cpu / kept.cpu[group.name] for group in known] or [1.0])
    lines = [f"CPU seconds: now, kept, budget; this machine takes {pace:.2f} times those kept"]
    for group in groups:
        over = group.cpu > pace * kept.budget.get(group.name, float("inf"))
        before, budget = (_seconds(known, group.name) for known in (kept.cpu, kept.budget))
        line = f"{group.cpu:7.0f} {before} {budget}  {group.name}"
        lines.append(f"{line}  OVER ITS BUDGET" if over else line)
    lines += ["", "slowest tests, in seconds: now, kept"]
    for name, took in slowest_of(groups).items():
        lines.append(f"{took:7.1f} {_seconds(kept.slowest, name)}  {name}")
    return "\n".join(lines)


def _seconds(known: Mapping[str, float], name: str) -> str:
    return f"{known[name]:7.0f}" if name in known else f"{'-':>7}"


def main(names: list[str], keeps: bool) -> int:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            groups = list(pool.map(run, names))
        except KeyboardInterrupt:  # the groups were told as well; those that wait do not begin
            pool.shutdown(wait=True, cancel_futures=True)
            return 130
    kept = read_times()
    if keeps:
        keep(groups, kept)
    print("", compared(groups, kept), "", *groups, sep="\n")
    return 0 if all(group.passed for group in groups) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help="keep the times in tests/times.json")
    parser.add_argument("names", nargs="+", metavar="target")
    arguments = parser.parse_args()
    sys.exit(main(arguments.names, arguments.keep))
