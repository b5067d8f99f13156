"""Replaces the AMP calls of a script by ampbridge's, and changes no other byte."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from os import PathLike
from typing import Any

from ampbridge.checkpoints import atomic_files
from ampbridge.errors import SourceError
from ampbridge.errors.foreign_text import printable
from ampbridge_port.reader.dialects.calls import Call
from ampbridge_port.reader.source import refused
from ampbridge_port.reading import Finding, Place
from ampbridge_port.rewriters import ALONE, ours, paddle, replacement_of
from ampbridge_port.rewriters.expressions import KEPT, NoReplacement, Part, Removed
from ampbridge_port.rewriting_calls import Calls, Known, Script

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
    script = Script(path_or_source)
    try:
        calls = Calls(script)
        known = list(calls.known())
        findings = [*_named(script, calls), *_not_seen(script, known)]
    except RecursionError as error:
        raise refused(script.file, "is too long or nested too deeply to be followed") from error
    replacements = replacement_of([call for each in known for call in each.calls])
    edits: list[_Edit] = []
    for each in known:
        try:
            edits += _edits(script, each, replacements)
        except NoReplacement as error:
            place = each.calls[0].place
            findings.append(Finding("lost", place, error.message, error.hint))
    kept = _outermost(edits)
    findings += [_inside_another(edit) for edit in edits if edit not in kept]
    findings = sorted(set(findings), key=lambda found: (found.place.line, found.place.column))
    kept = [] if findings else kept
    replaced = tuple(dict.fromkeys(edit.place for edit in kept))
    text = _applied(script.text, [*kept, *_imports(script, kept)])
    return Rewriting(script.file, script.text, text, script.encoding, replaced, tuple(findings))


def kept(findings: Iterable[Finding]) -> Iterator[Finding]:
    """What is left to say of a recipe's findings where the script goes on with its own loop.

    What a recipe could not express is in the script still, and what only a run shows stays an expression.
    """
    for found in findings:
        if found.kind != "unknown":
            hint = "" if re.search(r"--[a-z]|recipe", found.hint) else found.hint
            lost = found.kind == "lost"
            yield replace(found, kind="note" if lost else found.kind, hint="" if lost else hint)


# -- what cannot be replaced


def _named(script: Script, calls: Calls) -> Iterator[Finding]:
    """Classes and functions that are passed on or derived from, and what our scaler has not."""
    for node, name in calls.references():
        if name in ALONE and not _stays(name):
            hint = f"{ours(name)} in its place."
            place = script.place(node)
            yield Finding("lost", place, f"{place.text}: is not called here, but named.", hint)
    for node in calls.private_to_scalers():
        place = script.place(node)
        message = f"{place.text}: a scaler of ampbridge's has no such attribute."
        hint = "scaler.get_scale(), scaler.update(new_scale), GradScaler.like(..., min_scale=...)"
        yield Finding("lost", place, message, hint)


def _stays(name: str) -> bool:
    """Whether a method has the same name in ampbridge."""
    return getattr(ALONE[name], "__name__", "") == "unchanged"


def _not_seen(script: Script, known: Sequence[Known]) -> Iterator[Finding]:
    """Lines of a script with Paddle's scaler for which ours raises an error."""
    if any(call.name in paddle.SCALERS for each in known for call in each.calls):
        for node, (message, hint) in paddle.unseen(list(ast.walk(script.tree))):
            place = script.place(node)
            first = place.text.splitlines()[0]
            yield Finding("lost", place, f"{first}: {message}.", hint)


def _inside_another(edit: _Edit) -> Finding:
    message = f"{edit.place.text}: is inside of another call that was replaced, and is unchanged."
    return Finding("lost", edit.place, message, "take it out of there, then rewrite again.")


# -- places in the text


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str
    place: Place


def _edits(script: Script, known: Known, replacements: Any) -> list[_Edit]:
    """A call's text replaced, taken out with its statement, or with text around parts of it.

    Raises:
        NoReplacement: where it has none, or its name depends on a condition that makes a difference.
    """
    first = known.calls[0]
    found = {str(new): new for call in known.calls for new in [_new(call, replacements)]}
    (_, new), *others = found.items()
    if new is None and not others:
        return []
    if known.doubt or others:
        why = known.doubt or f"may be {' or '.join(call.name for call in known.calls)}"
        hint = f"{ours(first.name)} in each branch that makes it, then rewrite again."
        raise NoReplacement(first, why, hint)
    start, end = _range(script, first.place)
    if new is Removed:
        return [_Edit(*_statement(script, first, start, end), first.place)]
    if isinstance(new, str):
        if known.partial:  # partial(f, x) is what f(x) is, called later
            function, _, arguments = new.partition("(")
            new = f"{known.partial}({function}, {arguments}"
        return [_Edit(start, end, new, first.place)]
    return [edit for part in new for edit in _of_part(script, first, part)]


def _new(call: Call, replacements: Any) -> Any:
    return replacements[call.name](call) if call.name in replacements else None


def _of_part(script: Script, call: Call, part: Part) -> list[_Edit]:
    start, end = _range(script, part.place)
    before, kept, behind = part.text.partition(KEPT)
    if kept:
        return [_Edit(start, start, before, call.place), _Edit(end, end, behind, call.place)]
    if part.keyword:
        named = re.search(rf"\b{part.keyword}\s*=\s*$", script.text[:start])
        if named is None:
            hint = f"{part.keyword}={part.place.text}, then rewrite again."
            raise NoReplacement(call, f"{part.keyword} is passed without its name", hint)
        start = named.start()
    return [_Edit(start, end, part.text, call.place)]


def _range(script: Script, place: Place) -> tuple[int, int]:
    start = script.line_starts[place.line - 1] + place.column
    return start, start + len(place.text)


def _statement(script: Script, call: Call, start: int, end: int) -> tuple[int, int, str]:
    """Where to cut a call that is a statement of a module or function: its lines, or it is `pass`.

    Raises:
        NoReplacement: if it is no such statement.
    """
    for node in ast.walk(script.tree):
        body = node.body if isinstance(node, (ast.Module, ast.FunctionDef, ast.With)) else []
        body = node.body if isinstance(node, ast.If) and _is_main(node) else body
        if any(isinstance(each, ast.Expr) and script.place(each) == call.place for each in body):
            first, last = script.line_starts[call.place.line - 1], script.text.find("\n", end) + 1
            alone = not (script.text[first:start] + script.text[end:last]).strip()
            return (first, last, "") if alone and last and len(body) > 1 else (start, end, "pass")
    hint = "take it out, and decorate the model under the same condition."
    raise NoReplacement(call, "whether it is reached depends on a condition", hint)


def _is_main(node: ast.If) -> bool:
    return ast.unparse(node.test) == "__name__ == '__main__'"


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


def _imports(script: Script, edits: Sequence[_Edit]) -> list[_Edit]:
    """The imports that ``edits`` need and the module lacks, on lines of their own."""
    body = script.tree.body
    written = "".join(edit.text for edit in edits)
    present = {ast.unparse(node) for node in body if isinstance(node, (ast.Import, ast.ImportFrom))}
    lines = [line for used, line in IMPORTS.items() if used in written and line not in present]
    if not lines:
        return []
    newline = next(iter(re.findall(r"\r\n|\n|\r", script.text)), "\n")
    block = "".join(line + newline for line in lines)
    behind = _statement_before_imports(body)
    if behind is None:
        at = script.range_of(body[0])[0]
    elif script.line_at(min(edit.start for edit in edits)) == behind.lineno:
        at = script.line_starts[behind.lineno - 1]  # import torch; torch.autocast(...)
    elif (behind.end_lineno or 0) < len(script.line_starts):
        at = script.line_starts[behind.end_lineno or 0]
    else:
        at, block = len(script.text), newline + block
    return [_Edit(at, at, block, edits[0].place)]


def _statement_before_imports(body: Sequence[ast.stmt]) -> ast.stmt | None:
    """The framework's import, else the first, else what must stand before any."""
    last, first_import = None, None
    for index, node in enumerate(body):
        if _is_docstring(node, index) or getattr(node, "module", "") == "__future__":
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
    value = getattr(node, "value", None) if index == 0 and isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
