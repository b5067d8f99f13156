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
from ampbridge_port.dialect import Call
from ampbridge_port.files import parsed
from ampbridge_port.python import known_calls
from ampbridge_port.reading import Finding, Place
from ampbridge_port.rewriters import Around, NoReplacement, Removed, fleet, replacement_of
from ampbridge_port.rewriters.expressions import Instead, first_line
from ampbridge_port.source import Source

IMPORTS = {
    "ampbridge.": "import ampbridge",
    "ampbridge_tensorflow.": "import ampbridge_tensorflow",
    "keras.optimizers.get(": "import keras",
    "ampbridge_torch.accelerate.": "import ampbridge_torch.accelerate",
    "ampbridge_torch.lightning.": "import ampbridge_torch.lightning",
    "paddle_list(": "from ampbridge.policies.paddle_names import paddle_list",
}

FRAMEWORKS = (
    *("torch", "paddle", "tensorflow", "keras"),
    *("accelerate", "lightning", "pytorch_lightning"),
)


@dataclass(frozen=True)
class Rewriting:
    """The new text of a script, the replaced calls, and findings about calls without a replacement.

    Where there is one without, nothing is replaced: the findings say what to write by hand.
    """

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
    place: Place


def rewrite(path_or_source: str | PathLike[str]) -> Rewriting:
    """Replace the AMP calls of a script, all or none, without running it or changing the file.

        for each known call:  its text -> our call, with the same expressions
        if any:               import ampbridge, after the first import
        if one of them has no replacement:  the script as it was, and what to write by hand

    Args:
        path_or_source: as for ``read``, but only Python.

    Raises:
        SourceError: as ``read``.
    """
    source = _Verbatim(**vars(parsed(path_or_source)))
    calls = known_calls(source)
    replacements = replacement_of(calls)
    edits: list[_Edit] = []
    findings = list(fleet.refused(source.text, source.file, calls))
    for call in calls:
        try:
            edits += _edits(source, call, replacements.get(call.name, _unchanged)(call))
        except NoReplacement as error:
            findings.append(Finding("lost", call.place, error.message, error.hint))
    kept = _outermost(edits)
    findings += [_inside_another(edit) for edit in edits if edit not in kept]
    findings.sort(key=lambda found: (found.place.line, found.place.column))
    kept = [] if findings else kept
    replaced = tuple(dict.fromkeys(edit.place for edit in kept))
    text = _applied(source.text, [*kept, *_imports(source, kept)])
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


def _edits(source: _Verbatim, call: Call, new: Any) -> list[_Edit]:
    """A call's text replaced, taken out with its statement, or with text around parts of it."""
    start, end = _range(source, call.place)
    if new is None:
        return []
    if new is Removed:
        return [_Edit(*_statement(source, call, start, end), call.place)]
    if isinstance(new, str):
        return [_Edit(start, end, new, call.place)]
    return [edit for part in new for edit in _of_part(source, call, part)]


def _of_part(source: _Verbatim, call: Call, part: Around | Instead) -> list[_Edit]:
    start, end = _range(source, part.place)
    if isinstance(part, Around):
        before = _Edit(start, start, part.before, call.place)
        return [before, _Edit(end, end, part.behind, call.place)]
    if part.keyword:
        named = re.search(rf"\b{part.keyword}\s*=\s*$", source.text[:start])
        if named is None:
            msg = f"{first_line(call)}: {part.keyword} is passed without its name."
            raise NoReplacement(msg, f"{part.keyword}={part.place.text}, then rewrite again.")
        start = named.start()
    return [_Edit(start, end, part.text, call.place)]


def _range(source: _Verbatim, place: Place) -> tuple[int, int]:
    start = source.offset(place.line, place.column)
    return start, start + len(place.text)


def _statement(source: _Verbatim, call: Call, start: int, end: int) -> tuple[int, int, str]:
    """Where to cut a call that is a statement of a module or function: its lines, or it is `pass`.

    Raises:
        NoReplacement: if it is no such statement.
    """
    for node in ast.walk(ast.parse(source.text)):
        body = node.body if isinstance(node, (ast.Module, ast.FunctionDef, ast.With)) else []
        body = node.body if isinstance(node, ast.If) and _is_main(node) else body
        if any(_is_at(each, call.place, source) for each in body):
            first, last = source.line_starts[call.place.line - 1], source.text.find("\n", end) + 1
            alone = not (source.text[first:start] + source.text[end:last]).strip()
            return (first, last, "") if alone and last and len(body) > 1 else (start, end, "pass")
    msg = f"{first_line(call)}: whether it is reached depends on a condition."
    raise NoReplacement(msg, "take it out, and decorate the model under the same condition.")


def _is_main(node: ast.If) -> bool:
    return ast.unparse(node.test) == "__name__ == '__main__'"


def _is_at(node: ast.stmt, place: Place, source: _Verbatim) -> bool:
    text = ast.get_source_segment(source.text, node) if node.lineno == place.line else None
    return isinstance(node, ast.Expr) and text == place.text


def _inside_another(edit: _Edit) -> Finding:
    msg = f"{edit.place.text}: is inside of another call that was replaced, and is unchanged."
    return Finding("lost", edit.place, msg, "take it out of there, then rewrite again.")


def _outermost(edits: Sequence[_Edit]) -> list[_Edit]:
    """Without those inside of another one."""
    kept: list[_Edit] = []
    replacing = [edit for edit in edits if edit.end > edit.start]
    for edit in sorted(replacing, key=lambda edit: (edit.start, -edit.end)):
        if not kept or edit.start >= kept[-1].end:
            kept.append(edit)
    added = [edit for edit in edits if edit.end == edit.start]
    return kept + [a for a in added if not any(e.start < a.start < e.end for e in kept)]


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
    return [_Edit(at, at, block, edits[0].place)]


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
