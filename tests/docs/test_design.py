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
    layout, _, _ = section(2).partition("    backends/\n")
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
    core, tools = (each["layers"] for each in settings["tool"]["importlinter"]["contracts"])
    layers = [*(layer.replace("ampbridge_", "") for layer in tools[:-1]), *core[1:]]
    assert (tools[-1], core[0]) == ("ampbridge", "__main__")
    checked = [layer.replace(" | ", ", ") for layer in layers]
    _, _, below = section(2).partition("imports only from the folders below it")
    assert re.findall(r"^    (.+)$", below.partition("\nThe order")[0], re.M) == checked


def test_the_adapters_have_the_rooms_and_files_that_they_are_said_to_share() -> None:
    _, _, below = section(2).partition("    ampbridge_X/\n")
    layout, _, _ = below.partition("\n\n")
    rows = re.findall(r"^( +)(\w+(?:/|\.py)) +(.*)$", layout, re.M)
    assert len(rows) == len(layout.splitlines()) > 20
    room, who_has_it = "", ""
    for indent, name, what in rows:
        if name.endswith("/"):
            room, who_has_it = name, _who_has(what)
        inside = len(indent) > 6
        expected = who_has_it if inside and who_has_it != ALL else _who_has(what)
        path = room + name if inside else name
        have = [a for a in ALL if (ROOT / "backends" / f"ampbridge_{a}" / path).exists()]
        assert have == list(expected), path


ALL = ("numpy", "torch", "tensorflow", "paddle", "jax")


def _who_has(what: str) -> tuple[str, ...]:
    """The adapters that a row of the layout speaks of: those in brackets, or all."""
    _, _, named = what.lower().rpartition("(")
    names = tuple(adapter for adapter in ALL if f"{adapter}'s" in named and what.endswith(")"))
    return tuple(each for each in ALL if each not in names) if "not " in named else names or ALL


def test_the_table_has_every_method_of_the_protocol() -> None:
    rows = [line.split("|")[1] for line in section(3).splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"(\w+)(?:\(|`|,)", row)}
    methods = {
        name for name, _ in inspect.getmembers(Backend, inspect.isfunction) if name[0] != "_"
    }
    assert methods <= named
