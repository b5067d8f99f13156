"""Every name of the op table exists in the installed framework; known gaps are exactly the gaps.

One process per framework, through the script that users and maintainers run.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from processes import check_installed

ROOT = Path(__file__).parents[2]


def load_script():
    spec = importlib.util.spec_from_file_location("names", ROOT / "scripts/check_op_names.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


IMPORTED = [
    pytest.param(n, marks=pytest.mark.slow) for n in ("torch", "tensorflow", "paddle", "jax")
]


@pytest.mark.parametrize("framework", ["numpy", *IMPORTED])
def test_names_exist(framework):
    check_installed(framework)
    script = [sys.executable, str(ROOT / "scripts/check_op_names.py"), framework]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    *gaps, verdict = done.stdout.splitlines()
    assert (done.returncode, verdict) == (0, f"{framework}: 0 names not found"), done.stderr
    known = {name for names in load_script().KNOWN_GAPS.values() for name in names}
    found = {line.split(": ")[1] for line in gaps}
    assert found == (known if framework == "paddle" else set())
