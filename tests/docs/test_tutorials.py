"""Every tutorial runs, its claims hold, in every framework; warnings are errors.

On NumPy they run when the site is built (test_site.py).
"""

import re
from pathlib import Path

import pytest
from processes import check_installed, run_python

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
TUTORIALS = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.py"))}
FRAMEWORKS = ("torch", "tensorflow", "paddle", "jax")

# Number formats are NumPy's alone; every other page runs in each framework, by day in one of them.
PAGES = [name for name, text in TUTORIALS.items() if "BACKEND" in text]
RUNS = [
    pytest.param(
        name, framework, marks=() if turn == (number + 1) % len(FRAMEWORKS) else pytest.mark.nightly
    )
    for turn, framework in enumerate(FRAMEWORKS)
    for number, name in enumerate(PAGES)
]


@pytest.mark.parametrize("name, framework", RUNS)
@pytest.mark.slow
def test_it_runs(name, framework):
    check_installed(framework)
    run_python(Path(__file__).with_name("run_script.py"), framework, FOLDER / f"{name}.py")


def test_all_but_one_run_in_each_framework():
    assert len(TUTORIALS) == 6
    assert len(RUNS) == 4 * (len(TUTORIALS) - 1)


@pytest.mark.parametrize("name", TUTORIALS)
def test_what_it_asserts_is_folded(name):
    """In cells that Jupyter hides; the page has them at its end, so that the text reads without them."""
    cells = re.split(r"^# %%", TUTORIALS[name], flags=re.M)
    asserting = [cell for cell in cells if re.search(r"^ *assert ", cell, re.M)]
    assert asserting
    shown = [
        cell for cell in asserting if not cell.startswith(' jupyter={"source_hidden": true}\n')
    ]
    assert shown == []


@pytest.mark.parametrize("name", TUTORIALS)
def test_it_claims_nothing_without_an_assert(name):
    """After each section that prints something, or with it, there is a check."""
    sections = re.split(r"^# ## ", TUTORIALS[name], flags=re.M)
    shown = [section for section in sections if "print(" in section or "plt.show()" in section]
    assert shown
    assert [s.splitlines()[0] for s in shown if not re.search(r"^ *assert ", s, re.M)] == []
