"""A Python file as a syntax tree whose nodes know their parents, and the places of its nodes."""

from __future__ import annotations

import ast
import io
import os
import re
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from ampbridge.checkpoints import atomic_files
from ampbridge.errors import SourceError, nearest
from ampbridge_port.reading import Place

LARGEST = 4 * 2**20
"""Nobody writes a larger module; generated tables are longer."""

TEXT = "<source>"
"""The name, in places and messages, of a source that was passed as text."""

PYTHON_2 = re.compile(
    r"^\s*(print\s+[\"'\w]|exec\s+[\"'\w]|raise\s+\w+\s*,|except\s+[\w.]+\s*,\s*\w+\s*:)", re.M
)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(eq=False)
class Module:
    """A file's tree. ``file`` names it in places; ``name`` is dotted, of a module that is imported."""

    file: str
    text: str
    tree: ast.Module
    path: Path | None = None
    is_script: bool = True
    starts: tuple[int, ...] = ()
    """Of a notebook: the first line of each cell of code, and which cell it is."""
    cells: tuple[int, ...] = ()
    lines: list[str] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    """All of the tree, from the root on."""

    def __post_init__(self) -> None:
        self.lines = self.text.splitlines(keepends=True)
        self.nodes = [self.tree]
        for parent in self.nodes:  # which grows
            for name, value in ast.iter_fields(parent):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST) and not isinstance(child, ast.expr_context):
                        child._parent, child._field = parent, name  # type: ignore[attr-defined]
                        self.nodes.append(child)
        self.tree._module = self  # type: ignore[attr-defined]

    def place(self, node: ast.AST) -> Place:
        """Where ``node`` stands, and its text on one line."""
        line = getattr(node, "lineno", 1)
        column = len(
            self._line(line).encode()[: getattr(node, "col_offset", 0)].decode("utf-8", "ignore")
        )
        if self.starts:
            index = max(sum(start <= line for start in self.starts) - 1, 0)
            line, cell = line - self.starts[index] + 1, self.cells[index]
            return Place(self.file, line, column, self.segment(node), cell)
        return Place(self.file, line, column, self.segment(node))

    def segment(self, node: ast.AST, *, whole: bool = False) -> str:
        """The code of ``node``, on one line; of long ones the first 40 lines, if not ``whole``."""
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if not first or not last:
            return ""
        last = last if whole else min(last, first + 40)
        lines = [self._line(number).encode() for number in range(first, last + 1)]
        if last == node.end_lineno:  # type: ignore[attr-defined]
            lines[-1] = lines[-1][: node.end_col_offset]  # type: ignore[attr-defined]
        lines[0] = lines[0][node.col_offset :]  # type: ignore[attr-defined]
        return " ".join(b"".join(lines).decode("utf-8", "replace").split())

    def _line(self, number: int) -> str:
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""


# -- from bytes


def load(path: str | PathLike[str]) -> bytes:
    """The bytes of a regular file.

    Raises:
        SourceError: if it cannot be read.
    """
    try:
        return atomic_files.read(path)
    except OSError as error:
        msg = f"Cannot read {str(path)!r:.200}: {error.strerror or error}.\n"
        raise SourceError(f"{msg}Hint: {_instead_of(Path(path))}") from error


def _instead_of(path: Path) -> str:
    """What is there of a like name, where a file is not."""
    try:
        beside = os.listdir(path.parent)
    except OSError:  # no folder, or one that may not be read
        beside = []
    close = [] if path.name in beside else nearest(path.name, beside, 1)
    if close:
        return f"did you mean {str(path.with_name(close[0]))!r}?"
    return "ampbridge port train.py"


def refused(file: str, why: str) -> SourceError:
    """Why a file is not read."""
    return SourceError(f"{file} {why}.\nHint: leave it out, or pass the training script alone.")


def decoded(data: bytes, file: str) -> str:
    """The text of a file's bytes, in the encoding that it declares, else UTF-8.

    Raises:
        SourceError: if it is no text.
    """
    if b"\0" in data:
        raise refused(file, "is binary, not text")
    try:
        return data.decode(tokenize.detect_encoding(io.BytesIO(data).readline)[0])
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise refused(file, f"is not text in the encoding that it declares: {error}") from error


def parse(data: bytes, file: str, path: Path | None = None, is_script: bool = True) -> Module:
    """The tree of a module's bytes.

    Raises:
        SourceError: if it is no text, no Python 3, too large or too deeply nested.
    """
    if len(data) > LARGEST:
        raise refused(file, f"has {len(data) / 2**20:.1f} MB, more than {LARGEST / 2**20:.0f}")
    text = decoded(data, file).replace("\r\n", "\n").replace("\r", "\n")
    return Module(file, text, tree_of(text, file), path, is_script)


def tree_of(text: str, file: str) -> ast.Module:
    """The tree of a module's text.

    Raises:
        SourceError: as ``parse``.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in what the file says
            return ast.parse(text.replace("\f", " "))
    except SyntaxError as error:
        if PYTHON_2.search(text):
            msg = f"{file} is Python 2 (line {error.lineno}), which is not read.\n"
            raise SourceError(msg + f"Hint: 2to3 -w {file}") from error
        where = f"line {error.lineno or 1}, column {error.offset or 0}"
        msg = f"{file} is no Python: {error.msg} at {where}.\n"
        raise SourceError(msg + f"Hint: python -m py_compile {file}") from error
    except (RecursionError, MemoryError) as error:
        raise refused(file, "is nested too deeply to be parsed") from error
    except (ValueError, UnicodeError) as error:
        raise refused(file, f"cannot be parsed ({type(error).__name__})") from error


# -- around a node


def parents(node: ast.AST) -> Iterator[ast.AST]:
    """What ``node`` stands in, innermost first."""
    while (node := getattr(node, "_parent", None)) is not None:  # type: ignore[assignment]
        yield node


def module_of(node: ast.AST) -> Module:
    """The module that ``node`` is of."""
    while getattr(node, "_parent", None) is not None:
        node = node._parent  # type: ignore[attr-defined]
    module: Module = node._module  # type: ignore[attr-defined]
    return module


def own_class(function: ast.AST) -> ast.ClassDef | None:
    """The class of which ``function`` itself is a method."""
    parent = getattr(function, "_parent", None)
    return parent if isinstance(parent, ast.ClassDef) else None


def place_of(node: ast.AST) -> Place:
    """Where ``node`` stands."""
    written: Place | None = getattr(node, "_place", None)  # of a value that a configuration has
    return module_of(node).place(node) if written is None else written


def dotted(node: ast.AST) -> str:
    """``a.b.c``; "" for what is no such name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def last_name(node: ast.AST) -> str:
    """The last part of what is called: ``c`` of ``a.b().c``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def text_of(node: ast.AST) -> str:
    """The code of ``node`` as Python would write it."""
    text: str | None = getattr(node, "_text", None)
    if text is None:
        try:
            text = ast.unparse(node)
        except (RecursionError, ValueError):
            text = module_of(node).segment(node)
        node._text = text  # type: ignore[attr-defined]
    return text
