"""Replaces the AMP calls of a script by ampbridge's, and changes no other byte."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Container, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import cached_property
from os import PathLike
from typing import Any

from ampbridge.checkpoints import atomic_files
from ampbridge.errors import SourceError
from ampbridge.errors.foreign_text import printable
from ampbridge.port.dialect import Call
from ampbridge.port.files import parsed
from ampbridge.port.python import known_calls
from ampbridge.port.reading import Finding, Place
from ampbridge.port.rewriters import REPLACEMENTS, NoReplacement
from ampbridge.port.source import Source

IMPORTS = {
    "ampbridge.": "import ampbridge",
    "paddle_list(": "from ampbridge.policies.paddle_names import paddle_list",
}

FRAMEWORKS = ("torch", "paddle")


@dataclass(frozen=True)
class Rewriting:
    """The new text of a script, the replaced calls, and findings about calls without a replacement."""

    file: str
    before: str
    text: str
    encoding: str
    replaced: tuple[Place, ...]
    findings: tuple[Finding, ...]

    @property
    def difference(self) -> str:
        """A unified diff; empty if nothing was replaced."""
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.text))
        name = printable(self.file, "")
        lines = unified_diff(before, after, name, f"{name} with ampbridge")
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)

    def save(self) -> None:
        """Write the new text to the file, in its own encoding, completely or not at all.

        Raises:
            SourceError: if it cannot be written.
        """
        try:
            atomic_files.write(self.file, self.text.encode(self.encoding))
        except OSError as error:
            msg = f"Cannot write {self.file!r}: {error.strerror or error}.\n"
            raise SourceError(msg + "Hint: --out another.py") from error


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str
    place: Place | None = None


def rewrite(path_or_source: str | PathLike[str]) -> Rewriting:
    """Replace the AMP calls of a script, without running it or changing the file.

        for each known call:  its text -> our call, with the same expressions
        if any:               import ampbridge, after the first import

    Args:
        path_or_source: as for ``read``, but only Python.

    Raises:
        SourceError: as ``read``.
    """
    source = _Verbatim(**vars(parsed(path_or_source)))
    edits: list[_Edit] = []
    findings: list[Finding] = []
    for call in known_calls(source):
        try:
            new = REPLACEMENTS.get(call.name, _unchanged)(call)
        except NoReplacement as error:
            findings.append(Finding("lost", call.place, error.message, error.hint))
            continue
        if new is not None:
            edits.append(_edit(source, call.place, new))
    kept = _outermost(edits)
    findings += [_inside_another(edit) for edit in edits if edit not in kept]
    added = _imports(source, kept)
    replaced = tuple(edit.place for edit in kept if edit.place is not None)
    text = _applied(source.text, [*kept, *added])
    return Rewriting(source.file, source.text, text, source.encoding, replaced, tuple(findings))


class _Verbatim(Source):
    """A source whose places contain the exact text of the file, including line breaks."""

    @cached_property
    def line_starts(self) -> list[int]:
        """The starts of Python's lines; form feeds and Unicode's separators do not end a line."""
        return [0, *(end.end() for end in re.finditer(r"\r\n|\n|\r", self.text))]

    def offset(self, line: int, column: int) -> int:
        return self.line_starts[line - 1] + column

    def text_of(self, node: Any) -> str:
        start, end = self.range_of(node)
        return self.text[self.offset(*start) : self.offset(*end)]


def _unchanged(call: Call) -> str | None:
    return None


# -- places in the text


def _edit(source: _Verbatim, place: Place, new: str) -> _Edit:
    start = source.offset(place.line, place.column)
    return _Edit(start, start + len(place.text), new, place)


def _inside_another(edit: _Edit) -> Finding:
    assert edit.place is not None
    msg = f"{edit.place.text}: is inside of another call that was replaced, and is unchanged."
    return Finding("lost", edit.place, msg, "take it out of there, then rewrite again.")


def _outermost(edits: Sequence[_Edit]) -> list[_Edit]:
    """Without those inside of another one."""
    kept: list[_Edit] = []
    for edit in sorted(edits, key=lambda edit: (edit.start, -edit.end)):
        if not kept or edit.start >= kept[-1].end:
            kept.append(edit)
    return kept


def _applied(text: str, edits: Sequence[_Edit]) -> str:
    pieces, done = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        pieces += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*pieces, text[done:]])


# -- imports


def _imports(source: _Verbatim, edits: Sequence[_Edit]) -> list[_Edit]:
    """The imports that ``edits`` need and the module lacks, on lines of their own."""
    body = ast.parse(source.text).body
    written = "".join(edit.text for edit in edits)
    present = {ast.unparse(node) for node in body if isinstance(node, (ast.Import, ast.ImportFrom))}
    lines = [line for used, line in IMPORTS.items() if used in written and line not in present]
    if not lines:
        return []
    newline = next(iter(re.findall(r"\r\n|\n|\r", source.text)), "\n")
    block = "".join(line + newline for line in lines)
    behind = _statement_before_imports(body)
    if behind is None:
        at = source.offset(body[0].lineno, 0)
    elif _line_of(source, edits[0]) == behind.lineno:  # import torch; torch.autocast(...)
        at = source.offset(behind.lineno, 0)
    elif behind.end_lineno is not None and behind.end_lineno < len(source.line_starts):
        at = source.offset(behind.end_lineno + 1, 0)
    else:
        at, block = len(source.text), newline + block
    return [_Edit(at, at, block)]


def _line_of(source: _Verbatim, edit: _Edit) -> int:
    return bisect_right(source.line_starts, edit.start)


def _statement_before_imports(body: Sequence[ast.stmt]) -> ast.stmt | None:
    """The framework's import, else the first, else what must stand before any."""
    last, first_import = None, None
    for index, node in enumerate(body):
        if _is_docstring(node, index) or _is_future(node):
            last = node
        elif _imports_any(node, FRAMEWORKS):
            return node
        elif first_import is None and isinstance(node, (ast.Import, ast.ImportFrom)):
            first_import = node
        elif not isinstance(node, (ast.Import, ast.ImportFrom)):
            break
    return first_import or last


def _imports_any(node: ast.stmt, roots: Container[str]) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] in roots for alias in node.names)
    return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in roots


def _is_docstring(node: ast.stmt, index: int) -> bool:
    return (
        index == 0
        and isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
