"""scripts/skipped_tests.py: what did not run, by reason."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts/skipped_tests.py"

MODULES = {
    "test_none.py": "import pytest\npytest.skip('no browser: a | b', allow_module_level=True)",
    "test_missing.py": "import pytest\npytest.importorskip('nosuchmodule')",
    "test_some.py": """
import pytest

class TestIt:
    @pytest.mark.parametrize("n", [1, 2])
    def test_skipped(self, n):
        pytest.skip("the CPU's own")

    @pytest.mark.xfail(reason="known")
    def test_known(self):
        assert False

    def test_failing(self):
        assert False

def test_good():
    pass

def test_too():
    pytest.skip("the CPU's own")
""",
}


def test_reasons_with_their_tests(tmp_path):
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=run.xml", *MODULES)
    counts, _, *lines = run(tmp_path, SCRIPT, "run.xml").splitlines()
    assert counts == "1 passed, 1 failed, 5 skipped, 1 xfailed"
    assert lines == [
        "| tests | reason | which |",
        "|---|---|---|",
        "| 3 | the CPU's own | `test_some.py::TestIt::test_skipped` (2), `test_some.py::test_too` |",
        r"| 1 | no browser: a \| b | `test_none.py` |",
        "| 1 | could not import 'nosuchmodule': No module named 'nosuchmodule' | `test_missing.py` |",
        "| 1 | known | `test_some.py::TestIt::test_known` |",
    ]


def run(folder, *command):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout
