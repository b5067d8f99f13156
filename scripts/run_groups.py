"""Run targets of make, three at a time; tell what each said when it has ended, and then a line for each.

Below the line of a group that failed stand its tests that failed, and where one stood that did not
end: a log of which only the end is kept still names them.

    python scripts/run_groups.py lint types test-core

Goes on after a group that fails, and exits with 1 at the end. Needs Python alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

AT_ONCE = 3  # each computes on one core, and waits now and then; two would leave two cores idle
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


class Group(NamedTuple):
    name: str
    passed: bool
    seconds: float
    said: str

    def __str__(self) -> str:
        words = "passed" if self.passed else "FAILED"
        counts = "; ".join(COUNTS.findall(self.said))
        missing = "; ".join(sorted(f"skipped: {why}" for why in set(MISSING.findall(self.said))))
        told = "; ".join(filter(None, (counts, missing)))
        line = f"{words}  {self.name:<16} {self.seconds:5.0f} s  {told}".rstrip()
        failures = [] if self.passed else FAILURES.findall(self.said)[:MOST_FAILURES]
        return "\n".join([line, *failures])


def run(name: str) -> Group:
    begin = time.monotonic()
    done = subprocess.run(
        ["make", "--no-print-directory", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    group = Group(name, done.returncode == 0, time.monotonic() - begin, done.stdout)
    print(f"\n== {name}\n{group.said}", end="", flush=True)
    return group


def main(names: list[str]) -> int:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            groups = list(pool.map(run, names))
        except KeyboardInterrupt:  # the groups were told as well; those that wait do not begin
            pool.shutdown(wait=True, cancel_futures=True)
            return 130
    print("", *groups, sep="\n")
    return 0 if all(group.passed for group in groups) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
