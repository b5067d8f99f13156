"""The command line of ``compare``, and what all commands have in common."""

import argparse
import json
import os
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import ampbridge as amp
from ampbridge import workloads
from ampbridge.adapters import registry
from ampbridge.cli import _parser, main
from ampbridge_compare import command as compare_command

RECIPE = str(workloads.RECIPES["digits"])
SHORT = ["compare", "digits", "--backends", "numpy", "--steps", "2"]


def test_the_recipe_that_comes_with_ampbridge():
    recipe = amp.Recipe.load(RECIPE)
    assert (recipe.policy, recipe.scaler.init_scale) == (amp.Policy("O1"), 2.0**24)


def test_a_table_and_three_files_by_default(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(SHORT) == 0
    out, err = capsys.readouterr()
    result, rest = out.split("\n", 1)
    assert result.startswith("numpy skips 2 of 2 steps, and its loss goes from 2.3055 to ")
    assert rest.startswith("Policy('O1', 'float16'): digits-mlp, 2 steps, seed 0\nrun ")
    assert err.startswith("Written: ")
    folder = tmp_path / "comparison"
    page = (folder / "comparison.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    picture = (folder / "comparison.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", picture[16:24])
    assert width == 1350
    assert height > 2 * width
    data = json.loads((folder / "comparison.json").read_text())
    assert amp.Recipe.from_dict(data["recipe"]) == amp.Recipe.load(RECIPE)


def cells(text, run):
    """The row of ``run`` in a table."""
    lines = [line.strip() for line in text.splitlines()]
    return next(line.removeprefix(run).split() for line in lines if line.startswith(f"{run}  "))


def test_the_sample_in_the_documents_is_what_is_printed(tmp_path, capsys):
    """Up to what one CPU's kernels add in another order than another's."""
    root = Path(__file__).parents[2]
    assert main(["compare", "digits", "--backends", "numpy", "--output", str(tmp_path)]) == 0
    printed, page = capsys.readouterr().out, (root / "docs" / "compare.md").read_text("utf-8")
    for run in ("float32 (numpy)", "numpy"):
        for said, measured in zip(cells(page, run), cells(printed, run), strict=True):
            if said[0].isdecimal() and "^" not in said:
                measured = pytest.approx(float(measured.strip("%")), rel=0.05)
                said = float(said.strip("%"))
            assert said == measured


def test_json_alone_is_all_there_is_on_standard_output(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*SHORT, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["runs"][0]["label"] == "numpy"
    assert err == ""
    assert list(tmp_path.iterdir()) == []


def test_json_to_a_file_keeps_the_table(tmp_path, capsys):
    file = tmp_path / "data.json"
    assert main([*SHORT, "--json", str(file), "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("numpy skips 2 of 2 steps")
    assert err == ""
    assert json.loads(file.read_text())["steps"] == 2
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("kind", ["json", "html", "png"])
def test_a_file_that_exists_is_replaced_by_force_alone_and_never_the_recipe(kind, tmp_path, capsys):
    recipe = tmp_path / "recipe.toml"
    amp.Recipe().save(recipe)
    before = recipe.read_text()
    command = ["compare", str(recipe), "--backends", "numpy", "--steps", "1", f"--{kind}"]
    for options in ([], ["--force"]):
        assert main([*command, str(recipe), *options]) == 1
        assert "is a file that this command reads.\nHint: --" in capsys.readouterr().err
    assert recipe.read_text() == before
    notes = tmp_path / "notes"
    notes.write_text("mine")
    assert main([*command, str(notes)]) == 1
    assert capsys.readouterr().err.endswith("notes_new, or --force\n")
    assert notes.read_text() == "mine"
    assert main([*command, str(notes), "--force", "--quiet"]) == 0
    assert notes.read_bytes() != b"mine"


def test_the_installed_frameworks_are_compared_by_default(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(registry, "backends", lambda: {
        "numpy": "loaded", "torch": "not installed", "paddle": "available", "tensorflow": "not installed",
        "jax": "not installed",
    })  # fmt: skip
    monkeypatch.setattr("ampbridge_compare.run_all", lambda jobs, tell: asked.extend(jobs) or end())
    with pytest.raises(SystemExit):
        main(["compare", "digits", "--json"])
    assert [job.label for job in asked] == ["float32 (numpy)", "numpy", "paddle"]
    assert capsys.readouterr().err == "Not installed, and left out: torch, tensorflow, jax\n"


def end():
    raise SystemExit


@pytest.mark.slow
def test_seed_and_steps_are_what_was_asked_for(capsys):
    losses = []
    for seed in ("0", "0", "1"):
        assert main([*SHORT, "--json", "--seed", seed]) == 0
        losses.append(json.loads(capsys.readouterr().out)["runs"][0]["loss"])
    assert losses[0] == losses[1] != losses[2]
    assert len(losses[0]) == 2


MISTAKES = {
    "no recipe": (
        ["compare", "none.toml"],
        "RecipeError: Cannot read the recipe 'none.toml'",
        "Hint: amp.Recipe().save('recipe.toml') writes one.\n",
    ),
    "a backend": (
        ["compare", RECIPE, "--backends", "numpy,pytorch"],
        "BackendNotFoundError: No backend 'pytorch'",
        "Hint: did you mean 'torch'?\n",
    ),
    "a backend twice": (
        ["compare", RECIPE, "--backends", "numpy,numpy"],
        "ArgumentError: Backends are one or more, each once",
        "Hint: --backends numpy,torch\n",
    ),
    "a workload": (
        ["compare", RECIPE, "--workload", "digits-mpl"],
        "ArgumentError: No workload 'digits-mpl'",
        "Hint: digits-mlp\n",
    ),
    "no step": (
        ["compare", RECIPE, "--steps", "0"],
        "ArgumentError: Passed steps=0; allowed are whole numbers from 1.",
        "Hint: steps=200\n",
    ),
    "no directory": (
        ["compare", RECIPE, "--html", "nowhere/page.html"],
        "ArgumentError: There is no directory 'nowhere'.",
        "Hint: --html page.html, or mkdir -p nowhere\n",
    ),
    "a file for a directory": (
        ["compare", RECIPE, "--output", RECIPE],
        "ArgumentError: --output is a directory, and ",
        "Hint: --output comparison\n",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_cannot_be_compared_is_told_before_anything_runs(
    mistake, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ampbridge_compare.run_all", lambda *_: pytest.fail("something ran"))
    arguments, begins, ends = MISTAKES[mistake]
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(begins)
    assert err.endswith(ends)
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_nothing_runs(monkeypatch, capsys):
    monkeypatch.setattr(compare_command, "find_spec", lambda name: None)
    monkeypatch.setattr("ampbridge_compare.run_all", lambda *_: pytest.fail("something ran"))
    assert main(["compare", RECIPE, "--html", "page.html"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("BackendLoadError: '--html' has figures, which matplotlib draws")
    assert err.endswith("Hint: pip install 'ampbridge[report]', or --json alone\n")


# -- progress: on a terminal, unless it shall be quiet


def on_a_terminal(*arguments):
    """Standard error of a command that believes it is a terminal."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ampbridge", *arguments]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(command, stderr=theirs, stdout=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux's end of a terminal
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    assert process.wait() == 0
    return b"".join(parts).decode()


def test_bars_on_a_terminal():
    shown = on_a_terminal(*SHORT, "--json")
    assert "float32 (numpy)" in shown
    assert "2/2" in shown
    assert "done" in shown


@pytest.mark.parametrize("command", [SHORT, pytest.param(["doctor"], marks=pytest.mark.nightly)])
def test_quiet_is_silent_on_a_terminal(command):
    assert on_a_terminal(*command, "--json", "--quiet") == ""


# -- every command


def commands(parser, name=()):
    """Each command that does something, with its words."""
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not below:
        yield name, parser
    for action in below:
        for word, inner in action.choices.items():
            yield from commands(inner, (*name, word))


def test_every_command_knows_json_and_quiet():
    every = dict(commands(_parser()))
    assert {("doctor",), ("compare",), ("lists", "why"), ("lens", "census")} <= every.keys()
    for words, parser in every.items():
        if words != ("completion",):  # its output is a script
            options = {option for action in parser._actions for option in action.option_strings}
            assert {"--json", "--quiet"} <= options, words


def test_quiet_keeps_warnings_back(monkeypatch, capsys):
    def warn(options):
        warnings.warn("a warning", amp.AmpBridgeWarning, stacklevel=1)
        return 0

    monkeypatch.setattr("ampbridge_lens.explain_command._explain", warn)
    with pytest.warns(amp.AmpBridgeWarning):
        main(["explain", "O1", "numpy"])
    assert main(["explain", "O1", "numpy", "--quiet"]) == 0


def test_port_keeps_its_report_back(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text("import torch\nscaler = torch.amp.GradScaler('cuda')\n")
    command = ["port", str(script), "--to", "tensorflow", "--set", "policy.level=O1"]
    assert main(command) == 0
    loud = capsys.readouterr()
    assert "Fidelity" in loud.err
    assert main([*command, "--quiet"]) == 0
    quiet = capsys.readouterr()
    assert quiet.err == ""
    assert quiet.out == loud.out
