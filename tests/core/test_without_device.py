"""A folder of tests whose device cannot be had is skipped, or fails if the framework was asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

CONFTEST = """
from without_device import check_required, skipped_module

WHY_NOT = {why_not!r}
check_required("torch", WHY_NOT)

def pytest_pycollect_makemodule(module_path, parent):
    return skipped_module(WHY_NOT, module_path, parent)
"""


@pytest.mark.parametrize(
    "why_not, required, status, said",
    [
        ("no g++ was found", "paddle", 5, "no virtual device: no g++ was found"),
        (
            "no g++ was found",
            "torch",
            4,
            "AMPBRIDGE_REQUIRE asks for torch, and its virtual device",
        ),
        (None, "torch", 2, "No module named 'only_on_the_device'"),
    ],
)
def test_what_is_told(tmp_path, why_not, required, status, said):
    (tmp_path / "conftest.py").write_text(CONFTEST.format(why_not=why_not))
    (tmp_path / "test_a.py").write_text("import only_on_the_device\ndef test_b():\n    pass")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS), "AMPBRIDGE_REQUIRE": required},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said in done.stdout + done.stderr
    assert done.returncode == status  # 5: all was skipped, 4: conftest.py failed, 2: the import did
