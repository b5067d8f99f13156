"""Every test that the charter names exists."""

import re
from pathlib import Path

from ampbridge_testing import BackendConformance

ROOT = Path(__file__).parents[2]
CHARTER = (ROOT / "docs/charter.md").read_text()


def test_the_named_tests_exist():
    functions = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", CHARTER)
    assert len(functions) > 8
    for path, name in functions:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_the_named_tests_of_the_suite_exist():
    names = re.findall(r"`BackendConformance\.(\w+)`", CHARTER)
    assert len(names) > 8
    assert [name for name in names if not hasattr(BackendConformance, name)] == []


def test_every_promise_names_a_test():
    promises = [line for line in CHARTER.splitlines() if re.match(r"\| \d", line)]
    assert len(promises) == 9
    assert all("test_" in line for line in promises)
