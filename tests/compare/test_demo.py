"""``ampbridge demo``, as it is called in the first minutes."""

import io
import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from processes import check_installed

import ampbridge as amp
from ampbridge import workloads
from ampbridge.cli import main
from ampbridge_compare import Comparison, Run
from ampbridge_compare.demo import Demo
from ampbridge_compare.runs import Steps


def run(folder, *options):
    """In an empty folder, without the packages of the extras."""
    missing = "import sys; sys.modules.update(dict.fromkeys(['sklearn', 'matplotlib', 'libcst']))\n"
    code = f"{missing}from ampbridge.cli import main; sys.exit(main(['demo', *sys.argv[1:]]))"
    command = [sys.executable, "-c", code, *options]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def cells(text):
    rows = [re.split(r"  +", line) for line in text.splitlines()]
    return {row[0]: row[1:] for row in rows if len(row) == 3 and row[0].strip("-")}


def test_in_a_log(tmp_path):
    done = run(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    table = cells(done.stdout)
    full, mixed = (float(text.rstrip("%")) for text in table["test accuracy"])
    assert min(full, mixed) > 94
    assert abs(full - mixed) <= 1
    assert table["skipped steps"][0] == "0 of 600"
    assert int(table["skipped steps"][1].split()[0]) >= 3
    (history,) = [line for line in lines if line.startswith("  scale")]
    assert "█" in history
    assert "▁" in history
    assert lines[-2] == "On another framework: ampbridge demo --backend jax|paddle|tensorflow|torch"


@pytest.mark.slow
def test_on_another_framework_without_a_scale(tmp_path):
    check_installed("torch")
    done = run(tmp_path, "--backend", "torch", "--policy", "O2:bfloat16", "--json", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    (mixed,) = json.loads(done.stdout)["runs"]
    assert (mixed["backend"], len(mixed["loss"])) == ("torch", 600)
    assert mixed["accuracy"] > 0.94
    assert set(mixed["scale"]) == {1.0}


def test_a_framework_that_is_not_installed(monkeypatch, capsys):
    monkeypatch.setattr("ampbridge_compare.run_all", lambda jobs, tell: list(map(failed, jobs)))
    assert main(["demo", "--backend", "torch"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "AmpBridgeError: torch is missing.\nHint: pip install 'ampbridge[torch]'\n"


def failed(job):
    if job.kind == "reference":
        return Run(job.label, job.backend, job.kind)
    return Run.failed(job, "torch is missing.\nHint: pip install 'ampbridge[torch]'")


@pytest.mark.parametrize(
    "options, says, hint",
    [
        (["--policy", "O3"], "PolicyError: Cannot read the policy 'O3'", "which apex calls O3"),
        (["--backend", "pytorch"], "BackendNotFoundError: No backend 'pytorch'", "'torch'?"),
    ],
)
def test_what_cannot_be_shown(options, says, hint, capsys):
    assert main(["demo", *options]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(says)
    assert hint in err.splitlines()[-1]


# Sixty columns of ten steps: a scale of 2^8 up to the first step of the 31st column, then of 2^1; the
# last step of the first column is skipped.
FULL = Run(
    "float32 (numpy)",
    "numpy",
    "reference",
    steps=Steps((0.25,) * 600, (1.0,) * 600, (None,) * 600),
    accuracy=0.95,
)
MIXED = Run(
    "torch",
    "torch",
    "ampbridge",
    steps=Steps((0.5,) * 600, (256.0,) * 301 + (2.0,) * 299, (*[None] * 9, "inf", *[None] * 590)),
    accuracy=0.945,
)


def made(mixed=MIXED):
    return Demo(Comparison(workloads.recipe("digits"), "digits-mlp", 600, 0, (mixed,), FULL))


@pytest.mark.parametrize("encoding, high, low", [("utf-8", "█", "▁"), ("ascii", "#", "_")])
def test_the_history_of_the_scale(encoding, high, low):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    made().print(file)
    file.flush()
    lines = file.buffer.getvalue().decode(encoding).splitlines()
    assert "Loss scale, from 2^1 to 2^8; a column is 10 steps" in lines
    assert f"  scale    {high * 31}{low * 29}" in lines
    assert "  skipped  1" in lines
    assert cells("\n".join(lines)) == {
        "loss, last 50 steps": ["0.2500", "0.5000"],
        "test accuracy": ["95.0%", "94.5%"],
        "skipped steps": ["0 of 600", "1 of 600"],
        "last scale": ["none", "2^1"],
    }


def test_nothing_is_shown_of_a_scale_that_is_none():
    text = str(made(replace(MIXED, steps=FULL.steps)))
    assert "Loss scale" not in text
    assert cells(text)["last scale"] == ["none", "none"]


def test_the_recipe_is_the_digits_with_another_policy(monkeypatch):
    asked = []

    def note(recipe, backends, **options):
        asked.append((recipe, backends))
        raise amp.ArgumentError("that is all")

    monkeypatch.setattr("ampbridge_compare.demo.compare", note)
    for policy in ("O1", "O2", "O2:bfloat16"):
        main(["demo", "--policy", policy])
    (plain, backends), (low, _), (unscaled, _) = asked
    assert (plain, backends) == (workloads.recipe("digits"), ["numpy"])
    assert low == plain.replace(policy=amp.Policy("O2"))
    assert unscaled == plain.replace(policy=amp.Policy("O2", "bfloat16"), scaler=None)
