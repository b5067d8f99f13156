"""A Jupyter notebook as a script: its code cells in order, without magics.

Places are ``train.ipynb, cell 3, line 2``; cells are counted from 1, with those of text.
"""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from ampbridge.errors import SourceError
from ampbridge_port import source
from ampbridge_port.reading import Place
from ampbridge_port.source import Source

SUFFIX = ".ipynb"

_MAGIC = re.compile(
    r"^(?P<indent>\s*)(?:(?:[\w.][\w.,\s]*=\s*)?[%!]|\?).*$|^(?P<around>\s*)[\w.%]+\?{1,2}\s*$"
)
_CONTINUED = re.compile(r"\\\s*$")
_PYTHON_CELLS = re.compile(r"%%(?:time|timeit|capture|prun|memit|mprun|python3?|py)\b")


@dataclass(frozen=True)
class Notebook:
    """The code of a notebook, and where its cells begin."""

    file: str
    text: str
    starts: tuple[int, ...]
    """The first line of each code cell in ``text``."""
    numbers: tuple[int, ...]
    """Which cell of the notebook it is."""

    def placed(self, line: int, column: int, text: str) -> Place:
        """The place of a line of ``text`` in its cell."""
        index = max(bisect_right(self.starts, line) - 1, 0)
        if not self.starts:
            return Place(self.file, line, column, text)
        return Place(self.file, line - self.starts[index] + 1, column, text, self.numbers[index])

    def parsed(self) -> Source:
        """Its tree.

        Raises:
            SourceError: if a cell is no Python.
        """
        try:
            return _OfNotebook(**vars(source.parse(self.text.encode(), self.file)), notebook=self)
        except SourceError as error:
            raise self._in_its_cell(error) from error

    def _in_its_cell(self, error: SourceError) -> SourceError:
        """An error at a line of the text, in the words of the notebook."""
        found = re.search(r"at line (\d+), column (\d+)\.", str(error))
        if found is None:
            return error
        place = self.placed(int(found[1]), int(found[2]), "")
        first = str(error)[: found.start()]
        msg = f"{first}at cell {place.cell}, line {place.line}, column {found[2]}.\n"
        return SourceError(msg + f"Hint: jupyter nbconvert --to script {self.file}")


@dataclass
class _OfNotebook(Source):
    notebook: Notebook = field(kw_only=True)

    def placed(self, line: int, column: int, text: str) -> Place:
        return self.notebook.placed(line, column, text)


def read(data: bytes, file: str) -> Notebook:
    """The code of a notebook's bytes.

    Raises:
        SourceError: if it is no JSON, no notebook, or not one of Python.
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
            starts.append(line)
            numbers.append(number)
            texts.append(code)
            line += code.count("\n")
    return Notebook(file, "".join(texts), tuple(starts), tuple(numbers))


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
