"""All known calls of a script, in whichever branch they stand, with the exact text of their arguments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

from ampbridge.checkpoints.atomic_files import path_of
from ampbridge.scaling.scaler import GradScaler
from ampbridge_port.reader import source
from ampbridge_port.reader.dialects import DIALECTS, KNOWN, LAST_NAMES
from ampbridge_port.reader.dialects.calls import Argument, Call, NotKnown, Object
from ampbridge_port.reader.source import dotted, last_name, parents
from ampbridge_port.reading import Place
from ampbridge_port.rewriting_names import BINDS_ARGUMENTS, OTHER, Names

CASTS = ("half", "bfloat16")
OF_MODELS = ("parameters", "named_parameters", "modules", "named_modules", "children")
ANOTHER_FILES = "is of a scaler that another file makes, or that is not followed to here"
SCALERS = ("amp.GradScaler", "amp.AmpScaler")
LACKING = {
    method: name
    for name in sorted(KNOWN)
    for owner, _, method in [name.rpartition(".")]
    if owner.endswith(SCALERS) and not hasattr(GradScaler, method)
}
"""Methods of scalers that ampbridge's has by another name, or not at all."""


@dataclass(frozen=True)
class Known:
    """A call that dialects know. There are several ``calls`` where its name depends on a condition.

    ``doubt``: why it may be no such call, or not that alone. ``partial``: the text in front of the
    arguments of a ``functools.partial``.
    """

    calls: tuple[Call, ...]
    doubt: str = ""
    partial: str = ""


class Script:
    """A script's tree and its text, byte for byte. Raises SourceError as ``source.parse``."""

    def __init__(self, path_or_source: str | PathLike[str]) -> None:
        if isinstance(path_or_source, str) and "\n" in path_or_source:
            self.file, data = source.TEXT, path_or_source.encode()
        else:
            self.file = path_of(path_or_source, "amp.port.read('train.py')")
            data = source.load(self.file)
        self.tree = source.parse(data, self.file).tree
        self.text = source.decoded(data, self.file)
        self.encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]

    @cached_property
    def line_starts(self) -> list[int]:
        """The starts of Python's lines; form feeds and Unicode's separators do not end a line."""
        return [0, *(end.end() for end in re.finditer(r"\r\n|\n|\r", self.text))]

    def line_at(self, offset: int) -> int:
        """The number of the line that an offset is in."""
        return bisect_right(self.line_starts, offset)

    def range_of(self, node: Any) -> tuple[int, int]:
        """Where ``node`` begins and ends in the text."""
        ends = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        start, end = (self._offset(line, column) for line, column in ends)
        return start, end

    def _offset(self, line: int, column: int) -> int:
        start = self.line_starts[line - 1]
        encoded = self.text[start : start + column].encode()[:column]
        return start + len(encoded.decode("utf-8", "ignore"))

    def place(self, node: Any) -> Place:
        """Where ``node`` stands, and its exact text."""
        start, end = self.range_of(node)
        column = start - self.line_starts[node.lineno - 1]
        return Place(self.file, node.lineno, column, self.text[start:end])


class Calls:
    """The known calls of a script, in the order of the text."""

    def __init__(self, script: Script) -> None:
        self._script, self._names = script, Names(script.tree)
        nodes: list[Any] = [each for each in ast.walk(script.tree) if hasattr(each, "lineno")]
        self._nodes = sorted(nodes, key=lambda each: (each.lineno, each.col_offset))
        asked = (each.func for each in nodes if isinstance(each, ast.Call))
        self._models = {
            ast.unparse(func.value)
            for func in asked
            if isinstance(func, ast.Attribute) and func.attr in OF_MODELS
        }

    def known(self) -> Iterator[Known]:
        """Each call, and each setting of an attribute, that a dialect knows."""
        for node in self._nodes:
            match node:
                case ast.Call():
                    yield from self._of_call(node)
                case ast.ClassDef():
                    yield from self._of_class(node)
                case ast.Assign():
                    for target in node.targets:
                        yield from self._of_setting(target, node.value)

    def references(self) -> Iterator[tuple[ast.expr, str]]:
        """What names something of a library and neither calls it, nor gives it another name."""
        for node in self._nodes:
            named = isinstance(node, (ast.Name, ast.Attribute)) and last_name(node) in LAST_NAMES
            if named and isinstance(node.ctx, ast.Load) and not _is_followed(node):
                yield from ((node, name) for name in self._resolved(self._names.origins(node)))

    def private_to_scalers(self) -> Iterator[ast.Attribute]:
        """Attributes of a framework's scaler that no dialect knows and ampbridge's has not."""
        for node in self._nodes:
            if not isinstance(node, ast.Attribute) or not re.match("_|get_|set_|is_", node.attr):
                continue
            known = node.attr in LAST_NAMES or hasattr(GradScaler, node.attr)
            if not known and any(made.endswith(SCALERS) for made in self._made_by(node.value)):
                yield node

    def _resolved(self, qualified: Iterable[Any]) -> list[str]:
        names = (self._names.resolved(each) for each in qualified if isinstance(each, str))
        return list(dict.fromkeys(filter(None, names)))

    def _made_by(self, node: ast.AST) -> list[str]:
        """The names of the known calls that may have made what an expression is."""
        origins = self._names.origins(node)
        made = [self._names.made(each) for each in origins if isinstance(each, ast.Call)]
        return self._resolved(name for names in made for name in names)

    # -- calls

    def _of_call(self, node: ast.Call) -> Iterator[Known]:
        name = last_name(node.func)
        if by_form := self._by_form(node, name):
            yield Known((self._call(node, by_form, node.args),))
        elif not name or self._names.may_be_known(name):
            yield from self._by_origins(node, name)

    def _by_form(self, node: ast.Call, name: str) -> str:
        """What is known by how it is called: ``model.half()``, ``dict(type="AmpOptimWrapper")``."""
        if isinstance(node.func, ast.Attribute) and name in CASTS and not node.args:
            return f"torch.nn.Module.{name}" if ast.unparse(node.func.value) in self._models else ""
        kinds = [ast.unparse(key.value) for key in node.keywords if key.arg == "type"]
        return "mmengine.AmpOptimWrapper" if name == "dict" and "'AmpOptimWrapper'" in kinds else ""

    def _by_origins(self, node: ast.Call, name: str) -> Iterator[Known]:
        origins = self._names.origins(node.func)
        derived = [each for each in origins if isinstance(each, ast.ClassDef)]
        if BINDS_ARGUMENTS in origins:
            names, args = self._resolved(self._names.bound(node)), node.args[1:]
            partial, doubt = self._script.place(node.func).text, ""
        else:
            inherited = [base for each in derived for base in self._names.bases(each)]
            names, args = self._resolved([*origins, *inherited]), node.args
            partial, doubt = "", self._doubt(node, name, origins)
        if not names and doubt:  # of a functools.partial, or of a scaler that is made elsewhere
            bound = [self._names.bound(each) for each in origins if isinstance(each, ast.Call)]
            names = self._resolved(each for found in bound for each in found)
            names = names or ([LACKING[name]] if _is_scalers(node, name) else [])
        marks = frozenset({"class"} if derived else ())
        if names:
            calls = tuple(self._call(node, each, args, marks) for each in names)
            yield Known(calls, doubt, partial)

    def _doubt(self, node: ast.Call, name: str, origins: Sequence[Any]) -> str:
        """Why it is not sure what is called."""
        if any(isinstance(each, ast.Call) and self._names.bound(each) for each in origins):
            return "passes more to a functools.partial" if node.args or node.keywords else ""
        if any(isinstance(each, ast.FunctionDef) for each in origins):
            return "may be a function of the script in another branch"
        if OTHER in origins:
            return "may be something else in another branch"
        written = [each for each in origins if isinstance(each, str)]
        if not all(map(self._names.resolved, written)):
            if _is_scalers(node, name) and not any(map(self._names.resolved, written)):
                return ANOTHER_FILES
            return "may be something else in another branch"
        return "" if written or not _is_scalers(node, name) else ANOTHER_FILES

    def _call(
        self,
        node: ast.Call,
        name: str,
        args: Sequence[ast.expr],
        marks: frozenset[str] = frozenset(),
    ) -> Call:
        parameters = next(each.calls[name][0] for each in DIALECTS if name in each.calls).split()
        unpacked: Place | None = None
        passed: dict[str, Argument] = {}
        for index, value in enumerate(args):
            if isinstance(value, ast.Starred):
                unpacked = self._script.place(value.value)
                break
            passed[[*parameters, str(index)][min(index, len(parameters))]] = self._argument(value)
        for keyword in node.keywords:
            if keyword.arg is None:
                unpacked = self._script.place(keyword.value)
            else:
                passed[keyword.arg] = self._argument(keyword.value)
        known = {key: each for key, each in passed.items() if key in parameters}
        extra = {key: each for key, each in passed.items() if key not in parameters}
        return Call(name, self._script.place(node), known, extra, unpacked, overridden=marks)

    def _argument(self, node: ast.expr) -> Argument:
        """An argument as it is written, with its value where all branches agree on one."""
        place = self._script.place(node)

        def evaluate() -> Any:
            match self._names.origins(node):
                case [ast.Constant(value)]:
                    return value
                case [ast.Call() as call]:
                    for name in self._made_by(node):
                        return Object(name, self._call(call, name, call.args))
            raise NotKnown(place)

        def parts() -> Mapping[Any, Argument] | None:
            for each in self._names.origins(node):
                if isinstance(each, (ast.List, ast.Tuple)):
                    return {index: self._argument(item) for index, item in enumerate(each.elts)}
            return None

        return Argument(place, evaluate, parts=parts)

    # -- what is set

    def _of_class(self, node: ast.ClassDef) -> Iterator[Known]:
        """Arguments of a training with other defaults, as a call with them."""
        for name in self._resolved(self._names.bases(node)):
            if name.endswith("TrainingArguments"):
                fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                given = {ast.unparse(f.target): self._argument(f.value) for f in fields if f.value}
                yield Known((Call(name, self._script.place(node.bases[0]), given),))

    def _of_setting(self, target: ast.AST, value: ast.expr) -> Iterator[Known]:
        """An attribute that is set, or a variable of the environment, as a call with that argument."""
        if isinstance(target, ast.Subscript) and dotted(target.value) == "os.environ":
            names, passed = ["os.environ.__setitem__"], {"key": self._argument(target.slice)}
        elif isinstance(target, ast.Attribute) and target.attr in LAST_NAMES:
            made = self._made_by(target.value)
            names, passed = self._resolved(f"{each}.{target.attr}" for each in made), {}
        else:
            return
        passed["value"] = self._argument(value)
        yield from (Known((Call(each, self._script.place(target), passed),)) for each in names[:1])


def _is_scalers(node: ast.Call, name: str) -> bool:
    """Whether a call looks like one of a scaler's method which ours lacks."""
    return name in LACKING and "scal" in ast.unparse(node.func).lower()


def _is_followed(node: ast.AST) -> bool:
    """Whether ``Names`` follows a reference to where it is called; annotations call nothing."""
    for each in (node, *parents(node)):
        parent, field = getattr(each, "_parent", None), getattr(each, "_field", "")
        if field in ("annotation", "returns") or isinstance(parent, (ast.Attribute, ast.Assign)):
            return True
        if isinstance(parent, (ast.NamedExpr, ast.Return)):
            return True
        if isinstance(parent, ast.Call):
            is_bound = last_name(parent.func) == "partial" and parent.args[:1] == [each]
            return field == "func" or is_bound
        if not isinstance(parent, (ast.IfExp, ast.BoolOp, ast.Subscript)):
            return False
    return False
