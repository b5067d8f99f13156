"""A Python file's bytes -> its syntax tree, or an error that says why there is none.

Nothing of the file is imported or executed.
"""

from __future__ import annotations

import io
import os
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampbridge.checkpoints import atomic_files
from ampbridge.errors import SourceError, nearest
from ampbridge_port.reading import Place

if TYPE_CHECKING:
    import libcst as cst

# Generated tables aside, nobody writes a larger module; parsing one takes minutes.
LARGEST = 4 * 2**20
# LibCST's parser is recursive: from some 2000 brackets, or operators in a row, it overflows the
# stack and takes the process along. Python itself stops at 200 brackets.
DEEPEST = 400

PYTHON_2 = re.compile(
    r"^\s*(print\s+[\"'\w]|exec\s+[\"'\w]|raise\s+\w+\s*,|except\s+[\w.]+\s*,\s*\w+\s*:)", re.M
)


@dataclass
class Source:
    """The text of a file and its tree. ``file`` names it in places and messages."""

    file: str
    text: str
    module: cst.Module
    encoding: str = "utf-8"
    others: list[Source] = field(default_factory=list)
    """The sources of modules that are followed with this one: places of their nodes are theirs."""
    _texts: dict[Any, str] = field(default_factory=dict)

    @cached_property
    def _positions(self) -> Mapping[cst.CSTNode, Any]:
        import libcst as cst
        from libcst.metadata import PositionProvider

        spaces = (
            cst.BaseParenthesizableWhitespace,
            cst.TrailingWhitespace,
            cst.EmptyLine,
            cst.Newline,
        )

        class OfCode(dict[cst.CSTNode, Any]):
            """Positions but those of spaces, which are most of the nodes."""

            def __setitem__(self, node: cst.CSTNode, position: Any) -> None:
                if not isinstance(node, spaces):
                    super().__setitem__(node, position)

        class Positions(PositionProvider):
            """The provider alone: resolving it visits the whole tree once more."""

            def of(self, module: cst.Module) -> Mapping[cst.CSTNode, Any]:
                self._computed = OfCode()
                self._gen_impl(module)
                return self._computed

        return Positions().of(self.module)

    def place(self, node: cst.CSTNode) -> Place:
        """Where ``node`` stands, and its text."""
        owner = self.of(node)
        start = owner._positions[node].start
        return owner.placed(start.line, start.column, self.text_of(node))

    def placed(self, line: int, column: int, text: str) -> Place:
        """A place of this file alone, which lines of ``text`` are at."""
        return Place(self.file, line, column, text)

    def has(self, node: cst.CSTNode) -> bool:
        """Whether ``node`` is of this file itself."""
        return node in self._positions

    def of(self, node: cst.CSTNode) -> Source:
        """The source that ``node`` belongs to."""
        owners = (each for each in (self, *self.others) if each.has(node))
        return next(owners, self)

    def range_of(self, node: cst.CSTNode) -> tuple[tuple[int, int], tuple[int, int]]:
        """Line and column where ``node`` begins and where it ends, without parentheses around it."""
        found = self.of(node)._positions[node]
        return (found.start.line, found.start.column), (found.end.line, found.end.column)

    def text_of(self, node: cst.CSTNode) -> str:
        """The code of ``node``, on one line; without parentheses around it or a comma behind it."""
        if node not in self._texts:
            bare = node.with_changes(lpar=(), rpar=()) if _is_in_parentheses(node) else node
            text = " ".join(self.module.code_for_node(bare).split())
            self._texts[node] = text.removesuffix(",") if hasattr(node, "comma") else text
        return self._texts[node]


def _is_in_parentheses(node: cst.CSTNode) -> bool:
    """Whether there are parentheses around ``node`` that are no part of it, as of a tuple they are."""
    parts = ("Tuple", "GeneratorExp")
    return bool(getattr(node, "lpar", ())) and type(node).__name__ not in parts


def load(path: str | PathLike[str]) -> bytes:
    """The bytes of a file.

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
    return (
        f"did you mean {str(path.with_name(close[0]))!r}?" if close else "ampbridge port train.py"
    )


def parse(data: bytes, file: str) -> Source:
    """The tree of a module's bytes.

    Raises:
        SourceError: if it is no text, no Python 3, too large or too deeply nested.
        ImportError: as a SourceError that says what to install, without LibCST.
    """
    text = decoded(data, file)
    if len(data) > LARGEST:
        raise _no_source(file, f"has {len(data) / 2**20:.1f} MB, more than {LARGEST / 2**20:.0f}")
    if _is_deep(text):
        raise _no_source(file, f"is nested more than {DEEPEST} levels deep")
    try:
        import libcst as cst
    except ImportError as error:
        msg = "Reading Python source needs LibCST, which is not installed.\n"
        raise SourceError(msg + "Hint: pip install 'ampbridge[port]'") from error
    try:
        return Source(file, text, cst.parse_module(text), encoding_of(data))
    except cst.ParserSyntaxError as error:
        if PYTHON_2.search(text):
            msg = f"{file} is Python 2 (line {error.raw_line}), which is not read.\n"
            raise SourceError(msg + f"Hint: 2to3 -w {file}") from error
        where = f"line {error.raw_line}, column {error.raw_column}"
        msg = f"{file} is no Python: {error.message.splitlines()[0]} at {where}.\n"
        raise SourceError(msg + f"Hint: python -m py_compile {file}") from error
    except (RecursionError, ValueError, UnicodeError) as error:
        raise _no_source(file, f"cannot be parsed ({type(error).__name__})") from error


def check(data: bytes, file: str) -> None:
    """Whether a module's bytes are text at all, for those that are not parsed.

    Raises:
        SourceError: if they are not.
    """
    if b"\0" in data:
        raise _no_source(file, "is binary, not text")


def too_long(file: str) -> SourceError:
    """What to raise where following a file would take for ever."""
    return _no_source(file, "has too many statements to be followed")


def too_deep(file: str) -> SourceError:
    """What to raise where following a file exceeds Python's own recursion limit."""
    return _no_source(file, "is nested too deeply to be followed")


def decoded(data: bytes, file: str) -> str:
    """The text of a file's bytes, in the encoding that it declares, else UTF-8.

    Raises:
        SourceError: if it is no text.
    """
    check(data, file)
    try:
        return data.decode(encoding_of(data))
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise _no_source(file, f"is not text in the encoding that it declares: {error}") from error


def encoding_of(data: bytes) -> str:
    """The encoding that a module declares, else UTF-8; with a byte order mark, where there is one."""
    return tokenize.detect_encoding(io.BytesIO(data).readline)[0]


def _no_source(file: str, why: str) -> SourceError:
    return SourceError(f"{file} {why}.\nHint: leave it out, or pass the training script alone.")


# Everything that a parser nests by: brackets, operators, keywords of expressions, adjacent strings.
_TOKEN = re.compile(
    r"""\#[^\n]*|(?P<string>[rbuftRBUFT]{0,3}(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))"""
    r"""|(?P<open>[([{])|(?P<close>[)\]}])|(?P<stop>[,;])|(?P<line>\n)|(?P<elif>\belif\b)"""
    r"""|(?P<operator>[-+*/%@&|^~<>=!.:]|\b(?:not|and|or|if|else|lambda|await|in|is)\b)""",
    re.S,
)


def _is_deep(text: str) -> bool:
    """Whether the tree of ``text`` may be too deep: operators in a row count, at each bracket.

    So do the branches of an ``if``, each of which LibCST has within the one before.
    """
    levels, depth = [0], 0
    branches: dict[int, int] = {}  # of the last ``if`` at each indentation
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "elif":
            indentation = _indentation(text, token.start()) or 0
            branches[indentation] = branches.get(indentation, 0) + 1
        elif token.group() == "if" and len(levels) == 1 and branches:
            begins = _indentation(text, token.start())
            if begins is not None:
                branches[begins] = 0
        if kind == "open":
            levels.append(0)
            depth += 1
        elif kind == "close" and len(levels) > 1:
            depth -= levels.pop()  # the bracket itself counts on: what follows it may hang on it
            levels[-1] += 1
        elif kind == "stop" or (kind == "line" and len(levels) == 1):
            depth -= levels[-1]
            levels[-1] = 0
        elif kind in ("operator", "string"):
            levels[-1] += 1
            depth += 1
        if depth > DEEPEST or (kind == "elif" and sum(branches.values()) // 2 > DEEPEST):
            return True
    return False


def _indentation(text: str, start: int) -> int | None:
    """How far a statement that begins at ``start`` is indented; None if none begins there."""
    line = text.rfind("\n", 0, start) + 1
    begins = not text[line:start].strip() and text[max(line - 2, 0) : line - 1] != "\\"
    return start - line if begins else None
