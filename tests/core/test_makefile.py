"""`make test` and `make test-slow` run every folder of tests to the end, and no test for ever."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def run_groups(folder, *names):
    """As a copy in ``folder`` runs them, which keeps times of its own."""
    (folder / "scripts").mkdir(exist_ok=True)
    (folder / "tests").mkdir(exist_ok=True)
    script = shutil.copy(ROOT / "scripts" / "run_groups.py", folder / "scripts")
    command = [sys.executable, script, *names]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@needs_make
def test_both_commands_together_run_every_test():
    """What one leaves out as slow the other runs; and what is not marked so, one of them."""
    run = {"slow": set(), "not slow": set()}
    for target in ("test", "test-slow"):
        command = ["make", "--always-make", "--dry-run", target, "OPTIONS="]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        for said in re.findall(r"pytest -q (.*)", done.stdout):
            mark = re.search("-m '?(not slow|slow)", said)
            for folder in re.findall(r"tests/(?:zoo|\w+(?=\s|$))", said):  # of the zoo, some
                for each in [mark[1]] if mark else run:
                    run[each].add(folder)
    folders = {f"tests/{path.parent.name}" for path in ROOT.glob("tests/*/test_*.py")}
    with_slow_tests = {
        f"tests/{path.parent.name}"
        for path in ROOT.glob("tests/*/*.py")
        if "mark.slow" in path.read_text("utf-8")
    }
    assert run["not slow"] == folders
    assert run["slow"] >= with_slow_tests


@needs_make
def test_a_group_that_fails_ends_no_other_and_each_has_a_line(tmp_path):
    (tmp_path / "Makefile").write_text(
        "one:\n\t@echo '3 passed, 1 skipped in 0.10s'\n"
        "two:\n\t@echo why; exit 3\n"
        "three:\n\t@echo 'SKIPPED [2] a.py:42: a browser is not installed: none of x'\n"
    )
    done = run_groups(tmp_path, "one", "two", "three")
    assert done.returncode == 1
    assert "why\n" in done.stdout
    lines = [re.sub(" +", " ", line) for line in done.stdout.splitlines()[-3:]]
    assert lines == [
        "passed one 0 s 3 passed, 1 skipped",
        "FAILED two 0 s",
        "passed three 0 s skipped: a browser is not installed",
    ]


@needs_make
def test_times_are_compared_with_those_that_were_kept(tmp_path):
    (tmp_path / "Makefile").write_text(
        "one:\n\t@echo '2.50s call     tests/a.py::test_b[c d]'\n"
        "two:\n\t@echo '3.00s setup    tests/a.py::test_e'\n"
    )
    times = tmp_path / "tests" / "times.json"
    assert run_groups(tmp_path, "--keep", "one").returncode == 0
    kept = json.loads(times.read_text())
    assert kept == {"cpu": {"one": 0}, "budget": {}, "slowest": {"tests/a.py::test_b[c d]": 2.5}}
    times.write_text(json.dumps({**kept, "budget": {"one": -1, "two": 60}}))
    done = run_groups(tmp_path, "one", "two")
    assert done.returncode == 0  # no time fails a run
    said = [re.sub(" +", " ", line).strip() for line in done.stdout.splitlines()]
    begin = said.index("CPU seconds: now, kept, budget; this machine takes 1.00 times those kept")
    assert said[begin + 1 : begin + 7] == [
        "0 0 -1 one OVER ITS BUDGET",
        "0 - 60 two",
        "",
        "slowest tests, in seconds: now, kept",
        "3.0 - tests/a.py::test_e",
        "2.5 2 tests/a.py::test_b[c d]",
    ]


def test_a_budget_is_for_the_machine_of_the_kept_times():
    code = (
        "import run_groups as r\n"
        "kept = r.Times({'a': 10, 'b': 10, 'c': 10}, {'a': 15, 'b': 15, 'c': 15}, {})\n"
        "groups = [r.Group(n, True, 0, cpu, '') for n, cpu in [('a', 20), ('b', 20), ('c', 31)]]\n"
        "print(r.compared(groups, kept))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT / "scripts")
    first, *rows = done.stdout.splitlines()[:4]
    assert "2.00 times" in first
    assert ["OVER" in row for row in rows] == [False, False, True]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="has other instructions")
@pytest.mark.parametrize("instructions", ["avx2", "sse"])
def test_an_older_cpu_is_what_the_libraries_see(instructions):
    code = (
        "import os\n"
        "from numpy._core._multiarray_umath import __cpu_features__ as features\n"
        "names = os.environ['NPY_DISABLE_CPU_FEATURES'].split()\n"
        "print(len(names) > 0, any(features[name] for name in names))\n"
        "print(os.environ['ATEN_CPU_CAPABILITY'])"
    )
    command = [ROOT / "scripts/as_older_cpu.py", instructions, sys.executable, "-c", code]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    wanted = {"avx2": "avx2", "sse": "default"}[instructions]
    assert done.stdout.split() == ["True", "False", wanted]


@pytest.mark.parametrize(
    "body, limit, says",
    [
        ("import time; time.sleep(600)", "timeout=1", "Timeout (>1.0s) from pytest-timeout"),
        (
            "7 ** nine ** nine",
            "faulthandler_timeout=1",
            "Timeout (0:00:01)!",
        ),  # does not come back to Python
    ],
)
def test_a_test_that_does_not_end_is_named(body, limit, says, tmp_path):
    (tmp_path / "test_slow.py").write_text(f"def test_without_end():\n    nine = 9\n    {body}\n")
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-o", limit, tmp_path]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert says in done.stdout + done.stderr
    assert "test_without_end" in done.stdout + done.stderr


@needs_make
def test_the_end_names_what_failed_and_where_a_test_stood(tmp_path):
    (tmp_path / "tests").mkdir()
    slow = "def test_slow():\n    nine = 9\n    7 ** nine ** nine\n"
    (tmp_path / "tests" / "test_slow.py").write_text(slow)
    (tmp_path / "tests" / "test_wrong.py").write_text("def test_wrong():\n    assert 1 == 2\n")
    pytest_ = f"@PYTEST_ADDOPTS= {sys.executable} -m pytest -c {ROOT / 'pyproject.toml'}"
    (tmp_path / "Makefile").write_text(
        f"wrong:\n\t{pytest_} tests/test_wrong.py\n"
        f"slow:\n\t{pytest_} -o faulthandler_timeout=1 tests/test_slow.py\n"
        "last:\n\t@echo '1 passed in 0.10s'\n"
    )
    done = run_groups(tmp_path, "wrong", "slow", "last")
    _, _, end = done.stdout.rpartition("\n\n")
    wrong, slow, last = re.split("^(?=FAILED  slow|passed  last)", end, flags=re.MULTILINE)
    assert re.search(r"^FAILED .*::test_wrong - assert 1 == 2$", wrong, re.M)
    assert re.search(
        r"^Thread .*\n  File .*tests/test_slow\.py\", line 3 in test_slow$", slow, re.M
    )
    assert last.splitlines()[1:] == []


CLOCK = re.compile(
    r"timeout=|\.wait\(\d|\.join\(\d|\b(?:monotonic|perf_counter|process_time)\(|\btime\.time\("
)
# They time what is measured elsewhere by a clock that they make, or compare two readings in one order.
WITH_A_CLOCK = {
    "core/test_makefile.py",
    "lens/test_reports.py",
    "virtual_cuda/scripts/amp_recipe.py",
    "virtual_cuda/test_device.py",
}


def test_no_test_depends_on_a_clock():
    """A machine may be busy. What never ends is ended by the suite's watchdog (pyproject.toml)."""
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "tools" / "ampbridge_testing").glob("*.py")]
    foreign = ROOT / "tests" / "port"  # scripts in the manner of others, which nobody runs
    found = {
        str(file.relative_to(ROOT / "tests")) if "tests" in file.parts else file.name
        for file in files
        if file.parent == foreign or foreign not in file.parents
        if CLOCK.search(file.read_text("utf-8"))
    }
    assert found == WITH_A_CLOCK
