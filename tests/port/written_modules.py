"""What the tests of written modules share, whatever framework these are for."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

import ampbridge as amp
from ampbridge_port.writers import write

POWERS_OF_TWO = st.integers(-10, 20).map(lambda exponent: 2.0**exponent)


def few(examples: int) -> settings:
    """A search that is short in the night, too; an example that fails is not made smaller."""
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)],
    )


def assert_in_good_form(
    recipes: Iterable[amp.Recipe], target: str, folder: Path, *, longest: int = 100
) -> None:
    """Modules are as ruff formats and checks them, in every form; one process of it looks at all of them.

    No line is longer than ``longest``, but for a recipe's own, in comments.
    """
    for number, recipe in enumerate(dict.fromkeys(recipes)):
        for native, demo in itertools.product((True, False), repeat=2):
            code = write(recipe, target, native=native, demo=demo)
            assert all(len(line) <= longest or line.startswith("#") for line in code.splitlines())
            file = folder / f"{target}_{number}_{native}_{demo}.py"
            file.write_text(code, encoding="utf-8")
    formatted = _ruff("format", "--diff", str(folder))
    assert formatted.returncode == 0, formatted.stdout
    checked = _ruff("check", "--select=F,I,B,UP", "--ignore=B028,B905", str(folder))
    assert checked.returncode == 0, checked.stdout


def _ruff(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    ruff = [sys.executable, "-m", "ruff", command, "--isolated", "--line-length=100"]
    return subprocess.run([*ruff, *arguments], capture_output=True, text=True, check=False, cwd="/")
