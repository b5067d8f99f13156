"""docs/performance.md: every figure was written by a command that says what it ran on."""

from __future__ import annotations

import re
from pathlib import Path

import page
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "performance.md").read_text("utf-8")
PLACE = re.compile(r"<!-- measured: ([^>]+) -->\n(.*?)<!-- end of \1 -->\n", re.S)
COUNTED = re.compile(r"<!-- counted: ([^>]+) -->\n(.*?)<!-- end of \1 -->\n", re.S)
MADE = re.compile(
    r"\n`python (bench/\w+\.py)[^`]*`[^:]*: .+; commit [0-9a-f]{7,40}( and changes)?, "
    r"\d{4}-\d\d-\d\d, load \d+(\.\d)?(; baselines against themselves [\d.]+ to [\d.]+)?\.\n"
)
FIGURE = re.compile(r"\d+\.\d+|\d+ (%|ms|microseconds|times)")


@pytest.mark.parametrize(
    "name, content", [pytest.param(*place, id=place[0]) for place in PLACE.findall(PAGE)]
)
def test_a_table_says_how_it_was_made(name: str, content: str) -> None:
    made = MADE.match(content)
    assert made, f"nothing says how {name!r} was measured"
    assert (ROOT / made[1]).exists()
    assert content.count("\n|") > 2


def test_the_page_has_the_kept_figures() -> None:
    """If not: python bench/page.py"""
    assert page.with_figures(PAGE, page.read_figures()) == PAGE
    assert {name for name, _ in PLACE.findall(PAGE)} == set(page.read_figures())


def test_what_is_counted_names_its_command() -> None:
    """What does not depend on the machine; a test beside the command holds the page to it."""
    for name, content in COUNTED.findall(PAGE):
        command = re.match(r"\n`python (\S+\.py) --write`", content)
        assert command, f"nothing says how {name!r} was counted"
        assert (ROOT / command[1]).exists()


def test_no_figure_stands_outside_of_what_was_measured() -> None:
    words = COUNTED.sub("", PLACE.sub("", PAGE))
    assert FIGURE.findall(words) == []
    assert "\n|" not in words
    assert "<!-- " not in words
