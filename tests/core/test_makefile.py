"""`make test` runs every folder of tests: what decides green must not leave one out."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_test_runs_every_folder_of_tests():
    done = subprocess.run(
        ["make", "--always-make", "--dry-run", "test"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    run = set(re.findall(r"tests/\w+", " ".join(re.findall(r"pytest -q (.*)", done.stdout))))
    folders = {f"tests/{path.parent.name}" for path in ROOT.glob("tests/*/test_*.py")}
    assert run == folders
