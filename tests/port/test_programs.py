"""Programs in the manner of public trainers, each with what was read off it by hand.

``python scripts/score_port.py`` counts how many of them ``ampbridge port`` reads so.
"""

import ast
from pathlib import Path

import pytest
import tomllib

from ampbridge import Recipe

PROGRAMS = Path(__file__).with_name("programs")
TRUTHS = sorted(PROGRAMS.glob("*/truth.toml"))


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda path: path.parent.name)
def test_the_truth_is_a_recipe_of_files_that_are_there(truth):
    folder, read = truth.parent, tomllib.loads(truth.read_text("utf-8"))
    Recipe.from_dict(read["recipe"])
    assert len(read.get("answers", ())) <= 1
    assert (folder / read["command"][0]).exists()
    for told in read.get("told", ()):
        lines = (folder / told["file"]).read_text("utf-8").splitlines()
        assert lines[told["line"] - 1].strip()
        assert told["words"]


@pytest.mark.parametrize("folder", [truth.parent for truth in TRUTHS], ids=lambda path: path.name)
def test_a_program_is_python(folder):
    for file in folder.rglob("*.py"):
        ast.parse(file.read_text("utf-8"))


def test_there_are_as_many_as_were_asked_for():
    assert len(TRUTHS) >= 54
