"""The version stands in one place; what repeats it is held to it."""

import re
from pathlib import Path

import ampbridge as amp

ROOT = Path(__file__).parents[2]


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", text, re.M) == [amp.__version__]


def test_the_changelog_knows_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[?(\d\S*?)\]?(?: |$)", text, re.M)
    assert released[:1] == [amp.__version__] or f"{amp.__version__} will be the first" in text
