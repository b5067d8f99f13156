"""Snippets of training scripts, read; what each stands for was written by hand beside it.

``name.toml`` is the recipe that ``name.py`` (or ``.json``, ``.yaml``) stands for, alone and with nothing
unknown. In
``name.expected.toml`` each ``[[alternative]]`` has its conditions and its recipe, ``[[unknown]]`` says
what cannot be known and on which line that stands, ``[[finding]]`` what is said, of which line.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from ampbridge import Recipe, port

CORPUS = Path(__file__).parent / "corpus"
KINDS = frozenset({".py", ".json", ".yaml", ".yml"})
SNIPPETS = sorted(path for path in CORPUS.iterdir() if path.suffix in KINDS)
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
    expected = expected_of(snippet)
    reading = port.read(snippet)
    alternatives = {each.conditions: each for each in reading.alternatives}
    hand_written = {tuple(each["conditions"]): each for each in expected["alternative"]}
    assert set(alternatives) == set(hand_written)
    unknown = {(each["key"], each["line"]) for each in expected.get("unknown", ())}
    found = {(key, p.line) for each in reading.alternatives for key, p in each.unknown.items()}
    assert found == unknown
    for conditions, alternative in alternatives.items():
        sections = {}
        for key, value in alternative.settings.items():
            section, _, name = key.partition(".")
            sections.setdefault(section, {})[name] = value
        assert Recipe.from_dict(sections) == recipe_of(hand_written[conditions])
        assert set(alternative.unknown).isdisjoint(alternative.settings)
        if not alternative.unknown:
            assert alternative.recipe == recipe_of(hand_written[conditions])


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda path: path.stem)
def test_what_must_be_told_is_told(snippet):
    expected = expected_of(snippet)
    findings = port.read(snippet).findings
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
    findings = port.read(CORPUS / "torch_steps_by_either.py").findings
    assert not any("a second time" in found.message for found in findings)


def test_the_corpus_is_large_and_of_all_frameworks():
    assert len(SNIPPETS) >= 60
    frameworks = {port.read(snippet).framework for snippet in SNIPPETS}
    assert {"paddle", "torch", "apex", "tensorflow", "accelerate", "lightning"} <= frameworks


def test_reading_runs_nothing_and_imports_no_framework():
    code = """
import sys
from ampbridge import port
for path in sys.argv[1:]:
    port.read(path)
assert not {"torch", "tensorflow", "keras", "paddle"} & set(sys.modules)
"""
    snippets = [str(snippet) for snippet in SNIPPETS[::8]]
    done = subprocess.run([sys.executable, "-c", code, *snippets], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
