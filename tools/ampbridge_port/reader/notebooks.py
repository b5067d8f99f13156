"""A Jupyter notebook as a script: its code cells in order, without magics.

Places are ``train.ipynb, cell 3, line 2``; cells are counted from 1, with those of text.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

from ampbridge.errors import SourceError
from ampbridge_port.reader import source
from ampbridge_port.reader.source import Module

SUFFIX = ".ipynb"

_MAGIC = re.compile(
    r"^(?P<indent>\s*)(?:(?:[\w.][\w.,\s]*=\s*)?[%!]|\?).*$|^(?P<around>\s*)[\w.%]+\?{1,2}\s*$"
)
_CONTINUED = re.compile(r"\\\s*$")
_PYTHON_CELLS = re.compile(r"%%(?:time|timeit|capture|prun|memit|mprun|python3?|py)\b")


def parse(data: bytes, file: str, path: Path | None) -> Module:
    """The code of a notebook's bytes as one module.

    Raises:
        SourceError: if it is no JSON, no notebook, not one of Python, or a cell is no Python.
    """
    try:
        content = json.loads(source.decoded(data, file))
    except (ValueError, RecursionError) as error:
        raise _refused(file, f"is no JSON: {error or 'nested too deeply'}") from error
    cells = content.get("cells") if isinstance(content, dict) else None
    if not isinstance(cells, list):
        raise _refused(file, "is no notebook of format 4: it has no list of cells")
    language = _language(content)
    if language not in ("python", "python3", "ipython", "ipython3"):
        raise _refused(file, f"is a notebook of {language}, not of Python")
    texts, starts, numbers, line = [], [], [], 1
    for number, cell in enumerate(cells, 1):
        code = _code(cell, file, number)
        if code:
            _check(code, file, number)
            starts.append(line)
            numbers.append(number)
            texts.append(code)
            line += code.count("\n")
    text = "".join(texts)
    tree = source.tree_of(text, file)
    return Module(file, text, tree, path, True, tuple(starts), tuple(numbers))


def _check(code: str, file: str, number: int) -> None:
    """Whether a cell is Python by itself, so that an error names the right one."""
    try:
        source.tree_of(code, file)
    except SourceError as error:
        found = re.search(r"at line (\d+), column (\d+)\.", str(error))
        if found is None:
            raise
        where = f"cell {number}, line {found[1]}, column {found[2]}"
        msg = f"{str(error)[: found.start()]}at {where}.\n"
        raise SourceError(msg + f"Hint: jupyter nbconvert --to script {file}") from error


def _refused(file: str, why: str) -> SourceError:
    return SourceError(f"{file} {why}.\nHint: jupyter nbconvert --to script {file}")


def _language(content: dict[str, Any]) -> str:
    metadata = content.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    for section, key in (("kernelspec", "language"), ("language_info", "name")):
        found = metadata.get(section)
        if isinstance(found, dict) and isinstance(found.get(key), str):
            return str(found[key]).lower()
    return "python"


def _code(cell: Any, file: str, number: int) -> str:
    """The Python of a cell, ended by a line break; "" of one that has none."""
    if not isinstance(cell, dict) or cell.get("cell_type") != "code":
        return ""
    lines = cell.get("source", "")
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        lines = "".join(lines)
    if not isinstance(lines, str):
        raise _refused(file, f"is no notebook: cell {number} has no text")
    return without_magics(lines.replace("\r\n", "\n").rstrip("\n")) + "\n" if lines.strip() else ""


def without_magics(code: str) -> str:
    """A cell with as many lines, those of magics (``%time``, ``!pip install``) without effect."""
    first = code.lstrip()
    if first.startswith("%%") and not _PYTHON_CELLS.match(first):
        return "\n" * code.count("\n")
    if _is_python(code):
        return code
    lines, continued = [], False
    for line in code.split("\n"):
        magic = _MAGIC.match(line)
        if continued or magic:
            indent = (magic["indent"] or magic["around"] or "") if magic else ""
            lines.append("" if continued else f"{indent}pass")
            continued = bool(_CONTINUED.search(line))
        else:
            lines.append(line)
    return "\n".join(lines)


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
