"""Tools stand beside the core: it loads none of them, and works where they were deleted."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = sorted(file.parent.name for file in (ROOT / "tools").glob("*/__init__.py"))
RUN = """
import sys
sys.path = [entry for entry in sys.path if entry != {tools!r}] + [{left!r}]
{then}
"""


def python_without(deleted, folder, then):
    """A process that has all tools but those of ``deleted``."""
    for tool in set(TOOLS).difference(deleted):
        (folder / tool).symlink_to(ROOT / "tools" / tool)
    code = RUN.format(tools=str(ROOT / "tools"), left=str(folder), then=then)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )


def names_a_tool(file):
    """So, too, does who calls ``amp.explain``, which is the lens's."""
    short = "|".join(tool.removeprefix("ampbridge_") for tool in TOOLS)
    named = rf"ampbridge_({short})|\bamp\.({short}|explain)\b|import ({short})\b"
    return re.search(named, file.read_text("utf-8")) is not None


@pytest.mark.parametrize(
    "deleted, command",
    [(["ampbridge_port"], "port"), (["ampbridge_compare"], "demo"), (TOOLS, "lens")],
)
def test_the_command_line_of_a_checkout_without_a_tool(deleted, command, tmp_path):
    done = python_without(deleted, tmp_path, f"from ampbridge.cli import main; main([{command!r}])")
    assert done.returncode == 2
    assert f"invalid choice: '{command}'" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "deleted, tests",
    [
        (
            TOOLS,
            [file for file in Path(__file__).parent.glob("test_*.py") if not names_a_tool(file)],
        ),
        (["ampbridge_port", "ampbridge_testing", "ampbridge_rehearse"], [ROOT / "tests/lens"]),
        # What builds on the lens goes with it.
        (["ampbridge_lens", "ampbridge_compare", "ampbridge_testing"], [ROOT / "tests/port"]),
    ],
    ids=["all", "port", "lens"],
)
def test_the_rest_passes_its_tests(deleted, tests, tmp_path):
    arguments = ["-q", "-m", "not slow", "-p", "no:cacheprovider", *map(str, tests)]
    done = python_without(deleted, tmp_path, f"import pytest\nsys.exit(pytest.main({arguments}))")
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
