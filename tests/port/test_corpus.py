"""Snippets of training scripts, read; what each stands for was written by hand beside it.

``name.toml`` is the recipe that ``name.py`` (or ``.json``, ``.yaml``) stands for, alone and with nothing
unknown. In
``name.expected.toml`` each ``[[alternative]]`` has its conditions and its recipe, ``[[unknown]]`` says
what cannot be known and on which line that stands, ``[[finding]]`` what is said, of which line.
"""

import sys

import pytest
import tomllib
from foreign_scripts import CORPUS, SNIPPETS, reading_of

from ampbridge import Recipe
from ampbridge_port import choosing

SECTIONS = ("policy", "schedule", "scaler", "step", "decorate")


def expected_of(snippet):
    """The alternatives, unknowns and findings that are expected of a snippet."""
    plain = snippet.with_suffix(".toml")
    if plain.exists():
        return {"alternative": [{"conditions": [], **tomllib.loads(plain.read_text())}]}
    return tomllib.loads(snippet.with_suffix(".expected.toml").read_text())


def recipe_of(alternative):
    return Recipe.from_dict({key: alternative[key] for key in SECTIONS if key in alternative})


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda path: path.stem)
def test_a_snippet_is_read_as_it_was_by_hand(snippet):
    """The recipes to choose among are those that were read by hand, and so is what they lack."""
    expected = expected_of(snippet)
    hand_written = [recipe_of(each) for each in expected["alternative"]]
    unknown = {(each["key"], each["line"]) for each in expected.get("unknown", ())}
    candidates = (
        choosing.choose(reading_of(snippet).alternatives).candidates if hand_written else ()
    )
    for alternative in candidates:
        sections = {}
        for key, value in alternative.settings.items():
            section, _, name = key.partition(".")
            sections.setdefault(section, {})[name] = value
        assert Recipe.from_dict(sections) in hand_written
        assert {(key, place.line) for key, place in alternative.unknown.items()} <= unknown
        assert set(alternative.unknown).isdisjoint(alternative.settings)
    assert bool(candidates) is bool(hand_written)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda path: path.stem)
def test_what_must_be_told_is_told(snippet):
    expected = expected_of(snippet)
    findings = reading_of(snippet).findings
    for each in expected.get("finding", ()):
        assert any(
            (found.kind, found.place.line) == (each["kind"], each["line"])
            and each["says"] in f"{found.message} {found.hint}"
            for found in findings
        ), (each, findings)
    lines = {(each["kind"], each["line"]) for each in expected.get("finding", ())}
    ignored = {(found.kind, found.place.line) for found in findings if found.kind == "ignored"}
    assert ignored <= lines


def test_a_step_in_the_other_branch_is_no_second_step():
    findings = reading_of(CORPUS / "torch_steps_by_either.py").findings
    assert not any("a second time" in found.message for found in findings)


def test_gradients_that_are_divided_in_a_tree_are_an_average():
    findings = reading_of(CORPUS / "jax_pure_half.py").findings
    assert not any("summed" in found.message for found in findings)


def test_the_corpus_is_large_and_of_all_frameworks():
    assert len(SNIPPETS) >= 60
    frameworks = {reading_of(snippet).framework for snippet in SNIPPETS}
    assert {"paddle", "torch", "apex", "tensorflow", "accelerate", "lightning", "jax"} <= frameworks


def test_reading_imports_no_framework():
    """Nor does anything else that the tests of this folder have done in this process."""
    for snippet in SNIPPETS:
        reading_of(snippet)
    assert not {"torch", "tensorflow", "keras", "paddle", "jax"} & set(sys.modules)
