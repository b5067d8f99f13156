"""A script with its AMP calls replaced by ampbridge's, all else byte for byte as it was."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ampbridge.errors import SourceError
from ampbridge.port.dialect import Call
from ampbridge.port.reading import Finding, Place
from ampbridge.port.replacements import REPLACEMENTS, NoReplacement

IMPORTS = {
    "ampbridge.": "import ampbridge",
    "paddle_list(": "from ampbridge.port.names import paddle_list",
}


@dataclass(frozen=True)
class Rewriting:
    """The new text, and the calls that have no replacement and were left as they are."""

    text: str
    replaced: tuple[Place, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str
    place: Place | None = None


def rewrite(text: str, calls: Sequence[Call]) -> Rewriting:
    """``text`` with each of ``calls`` replaced; ``calls`` are those that were found in it.

        for each call:  its text -> our call, made of its own expressions
        if any:         import ampbridge, behind the first import

    Raises:
        SourceError: if a call does not stand where it says.
    """
    starts = _line_starts(text)
    edits: list[_Edit] = []
    findings: list[Finding] = []
    for call in calls:
        replacement = REPLACEMENTS.get(call.name, _without_replacement)
        try:
            new = replacement(call)
        except NoReplacement as error:
            findings.append(Finding("lost", call.place, error.message, error.hint))
            continue
        if new is not None:
            edits.append(_edit(text, starts, call.place, new))
    kept = _outermost(edits)
    findings += [_inside_another(edit) for edit in edits if edit not in kept]
    added = _imports(text, starts, "".join(edit.text for edit in kept))
    replaced = tuple(edit.place for edit in kept if edit.place is not None)
    return Rewriting(_applied(text, [*kept, *added]), replaced, tuple(findings))


def _without_replacement(call: Call) -> str | None:
    msg = f"{call.place.text.splitlines()[0]}: no single call of ampbridge's does what {call.name} does."
    hint = "write the recipe with --to toml, and the step as amp.train_step(..., recipe=recipe)."
    raise NoReplacement(msg, hint)


# -- places in the text


def _lines(text: str) -> Iterator[re.Match[str]]:
    """Python's lines: form feeds and Unicode's separators end none."""
    return re.finditer(r"[^\r\n]*(?:\r\n|\n|\r|\Z)", text)


def _line_starts(text: str) -> list[int]:
    return [line.start() for line in _lines(text)]


def _edit(text: str, starts: Sequence[int], place: Place, new: str) -> _Edit:
    start = starts[place.line - 1] + place.column
    end = start + len(place.text)
    if text[start:end] != place.text:
        msg = f"{place}: the file has changed since it was read.\nHint: read it again."
        raise SourceError(msg)
    return _Edit(start, end, new, place)


def _inside_another(edit: _Edit) -> Finding:
    assert edit.place is not None
    msg = f"{edit.place.text}: stands inside of another call that was replaced, and is as it was."
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
    for edit in sorted(edits, key=lambda edit: edit.start):
        pieces += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*pieces, text[done:]])


# -- imports


def _imports(text: str, starts: Sequence[int], written: str) -> list[_Edit]:
    """The imports that ``written`` needs and ``text`` lacks, on lines of their own."""
    tree = ast.parse(text)
    present = {
        ast.unparse(node) for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    lines = [line for used, line in IMPORTS.items() if used in written and line not in present]
    if not lines:
        return []
    newline = next((m[0] for m in re.finditer(r"\r\n|\n|\r", text)), "\n")
    at, ends_a_line = _place_of_imports(tree, text, starts)
    block = "".join(line + newline for line in lines)
    return [_Edit(at, at, block if ends_a_line else newline + block)]


def _place_of_imports(tree: ast.Module, text: str, starts: Sequence[int]) -> tuple[int, bool]:
    """Behind the first import at the top; before the first statement that may use it otherwise.

    Returns:
        The offset, and whether it is at the beginning of a line.
    """
    body = tree.body
    first = next(
        (i for i, node in enumerate(body) if not _is_docstring(node, i) and not _is_future(node)),
        len(body),
    )
    imports = (ast.Import, ast.ImportFrom)
    behind = body[first] if first < len(body) and isinstance(body[first], imports) else None
    if behind is None and first > 0:
        behind = body[first - 1]
    if behind is None:
        return (starts[body[0].lineno - 1] if body else 0), True
    assert behind.end_lineno is not None
    if behind.end_lineno < len(starts):
        return starts[behind.end_lineno], True
    return len(text), False


def _is_docstring(node: ast.stmt, index: int) -> bool:
    return (
        index == 0
        and isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
