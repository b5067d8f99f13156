"""The design names what there is: modules of the core, files of the adapters, methods of the protocol."""

from __future__ import annotations

import inspect
import re
from fnmatch import fnmatch
from pathlib import Path

import tomlkit

from ampbridge import Backend

ROOT = Path(__file__).parents[2]
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def section(number: int) -> str:
    return DESIGN.split(f"\n## {number}. ")[1].split("\n## ")[0]


def test_the_layout_has_every_module_of_the_core() -> None:
    layout, _, _ = section(2).partition("    backends/")
    named = re.findall(r"[\w*]+\.py", layout)
    folders = (".", "adapters", "checkpoints", "policies", "scaling", "training")
    files = [path for folder in folders for path in (ROOT / "ampbridge" / folder).glob("*.py")]
    modules = [path.name for path in files if path.name[0] != "_"]
    assert [name for name in modules if not any(fnmatch(name, each) for each in named)] == []
    present = {path.name for path in (ROOT / "ampbridge").rglob("*.py")}
    assert [name for name in named if "*" not in name and name not in present] == []


def test_the_layers_are_those_that_are_checked() -> None:
    """``make lint`` holds the code to those in pyproject.toml."""
    settings = tomlkit.parse((ROOT / "pyproject.toml").read_text(encoding="utf-8")).unwrap()
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    checked = [layer.replace(" | ", ", ") for layer in contract["layers"] if layer != "__main__"]
    _, _, below = section(2).partition("imports from those below it alone")
    assert re.findall(r"^    (.+)$", below.partition("\nThe order")[0], re.M) == checked


def test_the_adapters_have_the_files_that_they_are_said_to_share() -> None:
    _, _, below = section(2).partition("The four adapters share these files")
    all_four, _, of_frameworks = below.partition("Where\nthe framework has")
    of_frameworks, _, _ = of_frameworks.partition("\n\n")
    for adapter in ("numpy", "torch", "tensorflow", "paddle"):
        folder = ROOT / "backends" / f"ampbridge_{adapter}"
        for name in re.findall(r"`(\w+\.py)`", all_four):
            assert (folder / name).is_file(), f"{adapter}: {name}"
        for name in re.findall(r"`(\w+\.py)`", of_frameworks):
            assert (folder / name).is_file() is (adapter != "numpy"), f"{adapter}: {name}"


def test_the_table_has_every_method_of_the_protocol() -> None:
    rows = [line.split("|")[1] for line in section(3).splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"(\w+)(?:\(|`|,)", row)}
    methods = {
        name for name, _ in inspect.getmembers(Backend, inspect.isfunction) if name[0] != "_"
    }
    assert methods <= named
