"""The command line, in this process on a toy framework, and as processes of their own."""

import json
import stat
import subprocess
import sys

import numpy as np
import pytest

import ampbridge as amp
from ampbridge.adapters import registry
from ampbridge.cli import main
from ampbridge.policies import op_table


def run(*arguments):
    command = [sys.executable, "-m", "ampbridge", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_version():
    done = run("--version")
    assert (done.stdout, done.returncode) == (f"ampbridge {amp.__version__}\n", 0)


def test_the_installed_command_is_the_same():
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="ampbridge")
    assert script.load() is main


@pytest.mark.usefixtures("toy")
def test_explain(capsys):
    assert main(["explain", "O1", "toyframework", "--ops", "softmax,matmul"]) == 0
    printed = capsys.readouterr().out
    table = amp.explain("O1", "toyframework").only(["softmax", "matmul"])
    assert printed == f"{table}\n"


@pytest.mark.usefixtures("toy")
def test_explain_all(capsys):
    assert main(["explain", "O1", "toyframework", "--all"]) == 0
    ops, features = capsys.readouterr().out.split("\n\n")
    assert [line.split()[0] for line in ops.splitlines()[-339:]] == list(op_table.ops())
    assert features.startswith("feature")


@pytest.mark.usefixtures("toy")
def test_explain_as_data(capsys):
    assert main(["explain", "O2:bfloat16", "toyframework", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data == amp.explain("O2:bfloat16", "toyframework").to_dict()


@pytest.mark.usefixtures("toy")
def test_doctor_of_one_framework(capsys):
    assert main(["doctor", "--framework", "toyframework"]) == 0
    printed = capsys.readouterr().out
    assert "Toy 1 (compute capability 8.0)" in printed
    assert "recommended: Policy('O1', 'bfloat16')" in printed


def test_doctor_asks_each_framework_in_a_process_of_its_own(capsys, monkeypatch):
    monkeypatch.setattr(registry, "backend_names", lambda: ["numpy"])
    before = set(sys.modules)
    assert main(["doctor", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["frameworks"]
    assert (report["name"], report["status"]) == ("numpy", "probed")
    assert report["version"] == np.__version__
    assert report["devices"][0]["failures"] == {"bfloat16": "results in float32"}
    assert "autograd" not in set(sys.modules) - before


def test_doctor_of_a_framework_that_is_not_installed(capsys, toy, monkeypatch):
    monkeypatch.setattr(registry, "backend_names", lambda: ["toyframework"])
    assert main(["doctor"]) == 0
    assert "not installed: pip install 'ampbridge[toyframework]'" in capsys.readouterr().out


def test_a_framework_that_crashes_its_process_is_a_row(capsys, monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'free(): invalid pointer' >&2\nkill -6 $$\n")
    python.chmod(python.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setattr(registry, "backend_names", lambda: ["numpy"])
    monkeypatch.setattr(sys, "executable", str(python))
    assert main(["doctor"]) == 1
    assert "failed: exit code -6: free(): invalid pointer" in capsys.readouterr().out


def test_numpy_by_itself():
    done = run("doctor", "--framework", "numpy", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["recommendation"]["policy"] == "O0"


# -- wrong calls: what is printed, and the exit code

MISTAKES = {
    "a policy": (
        ["explain", "O3", "numpy"],
        "PolicyError: Cannot read the policy 'O3'; allowed are ",
        "Hint: Policy('O2', masters=None), which apex calls O3.\n",
    ),
    "a backend": (
        ["explain", "O1", "pytorch"],
        "BackendNotFoundError: No backend 'pytorch'; registered are ",
        "Hint: did you mean 'torch'?\n",
    ),
    "an op": (
        ["explain", "O1", "numpy", "--ops", "softmux"],
        "PolicyError: Unknown op 'softmux'; ",
        "Hint: did you mean 'softmax' or 'softmin' or 'softplus'?\n",
    ),
    "a framework": (
        ["doctor", "--framework", "pytorch"],
        "BackendNotFoundError: No backend 'pytorch'; registered are ",
        "Hint: did you mean 'torch'?\n",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_argument_is_told_without_a_traceback(mistake):
    arguments, begins, ends = MISTAKES[mistake]
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(begins)
    assert done.stderr.endswith(ends)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [[], ["doctors"], ["explain", "O1"], ["doctor", "--jsn"]])
def test_arguments_that_cannot_be_read(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ampbridge")
