"""The script of docs/reference/neutral.md runs on each framework, and prints nearly the same there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs/reference/neutral.md"
FRAMEWORKS = ("numpy", "torch", "tensorflow", "paddle", "jax")


@pytest.fixture(scope="session")
def printed(
    tmp_path_factory: pytest.TempPathFactory,
    run_script: Callable[..., str],
    for_each_framework: Callable[[Callable[[str], str]], Callable[[str], str]],
) -> Callable[[str], str]:
    (script,) = re.findall(r"```python\n(.*?)```\n", PAGE.read_text(), re.S)
    file = tmp_path_factory.mktemp("neutral") / "spirals.py"
    file.write_text(script)
    return for_each_framework(lambda framework: run_script(file, framework))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_learns_after_the_same_skipped_steps(printed: Any, framework: str) -> None:
    """The steps that are skipped at first, while the scale falls to where gradients fit."""
    lines, reference = (printed(name).splitlines() for name in (framework, "numpy"))
    assert lines[:3] == reference[:3]
    assert all(line.endswith(", inf") for line in lines[:3])
    (accuracy,) = re.findall(rf"^{framework}: loss .*, (.*)% right$", lines[-1])
    assert float(accuracy) > 98.0


def test_it_names_no_framework_but_the_one_that_is_chosen() -> None:
    text = PAGE.read_text()
    script = text[text.index('"""Three spirals') : text.index("{accuracy:.1%} right")]
    code = re.sub(r"#.*|\"\"\".*?\"\"\"", "", script)
    assert re.findall(r"torch|tensorflow|keras|paddle|jax", code) == []
    assert re.findall(r"\"numpy\"", code) == ['"numpy"']
