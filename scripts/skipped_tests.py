"""The tests that did not run, by reason, as a table in Markdown: from a run's JUnit files.

    python -m pytest --junitxml run.xml tests/torch
    python scripts/skipped_tests.py run.xml

Needs Python alone.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree


class Case(NamedTuple):
    """A test of a run.

    Attributes:
        outcome: ``"passed"``, ``"failed"``, ``"skipped"``, or ``"xfailed"``.
        name: ``test_file.py::test``, without what it was parametrized by.
        why: it was skipped or xfailed, else "".
    """

    outcome: str
    name: str
    why: str


OUTCOMES = ("passed", "failed", "skipped", "xfailed")


def cases(file: Path) -> Iterator[Case]:
    """Of a JUnit file that pytest wrote."""
    for each in ElementTree.parse(file).iter("testcase"):
        name = _name(each.get("classname", ""), each.get("name", ""))
        skipped = each.find("skipped")
        if each.find("failure") is not None or each.find("error") is not None:
            yield Case("failed", name, "")
        elif skipped is None:
            yield Case("passed", name, "")
        else:
            outcome = "xfailed" if skipped.get("type") == "pytest.xfail" else "skipped"
            yield Case(outcome, name, _why(skipped))


def _name(classname: str, name: str) -> str:
    """``tests.torch.test_ops.TestX``, ``test_y[z]`` -> ``test_ops.py::TestX::test_y``."""
    words = classname.split(".")
    module = next((i for i, word in enumerate(words) if word.startswith("test_")), len(words))
    if module == len(words):  # what could not be collected, by its module
        return f"{name.rpartition('.')[2]}.py"
    return "::".join([f"{words[module]}.py", *words[module + 1 :], name.partition("[")[0]])


def _why(skipped: ElementTree.Element) -> str:
    """In one line; a module that was skipped has the reason behind its file and line."""
    why = skipped.get("message", "")
    if why == "collection skipped":
        _, _, why = ast.literal_eval(skipped.text or "")  # file, line, reason
        why = why.removeprefix("Skipped: ")
    return " ".join(why.split())


def table(found: Sequence[Case]) -> str:
    """Reasons by how many tests have them, with the names of the tests; "" if there is none."""
    did_not = [case for case in found if case.outcome in ("skipped", "xfailed")]
    if not did_not:
        return ""
    lines = ["| tests | reason | which |", "|---|---|---|"]
    for why, count in Counter(case.why for case in did_not).most_common():
        names = Counter(case.name for case in did_not if case.why == why)
        which = ", ".join(f"`{name}`" + (f" ({n})" if n > 1 else "") for name, n in names.items())
        lines.append(f"| {count} | {why.replace('|', chr(92) + '|')} | {which} |")
    return "".join(f"{line}\n" for line in lines)


def counts(found: Sequence[Case]) -> str:
    """As "3 passed, 1 skipped"."""
    by_outcome = Counter(case.outcome for case in found)
    return ", ".join(f"{by_outcome[each]} {each}" for each in OUTCOMES if by_outcome[each])


def main(files: Sequence[str]) -> int:
    if not files:
        print(__doc__, file=sys.stderr)
        return 2
    found = [case for file in files for case in cases(Path(file))]
    print(f"{counts(found)}\n\n{table(found)}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
