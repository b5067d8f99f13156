"""What each expression of a script may be, in whichever branch it was bound.

A recipe is read under one set of conditions; a script that is rewritten goes on under any. So a name
stands here for everything that the script binds to it, wherever that happens.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from ampbridge_port.reader.dialects import LAST_NAMES, resolved
from ampbridge_port.reader.source import FUNCTIONS, last_name, own_class, parents

Origin = str | ast.AST
"""What an expression may be: something of a library, by its name, or a node of the script."""

RETURNS_ITS_ARGUMENT = ("paddle.distributed.fleet.distributed_scaler", "copy.copy", "copy.deepcopy")
BINDS_ARGUMENTS = "functools.partial"
IMPORTS = (ast.Import, ast.ImportFrom)
FOLLOWED = (*FUNCTIONS, ast.ClassDef, ast.Constant, ast.List, ast.Tuple)
OTHER = ast.Pass()
"""Whatever else an expression may be: a parameter, a number that is computed, an item of a list."""
KNOWN = LAST_NAMES | {"copy", "deepcopy", "partial"}
"""The last names of what dialects know, or of what passes its arguments on."""
MOST_WORK = 2_000_000
"""As many expressions are looked at, at most; a script of 3,000 lines needs 20,000."""
DEEPEST = 8
"""No name of a library has more dots."""


class Names:
    """What a script binds to its names and attributes, whichever function does, and what follows from it.

    An expression may be whatever those may be that it is made of. One that is asked for within itself,
    in a loop of names, adds nothing there. Items of lists and tables are not followed.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._bound: dict[str, list[Origin]] = {}
        self._attributes: dict[str, list[Origin]] = {}
        self._found: dict[int, list[Origin]] = {}
        self._taken: set[int] = set()
        self._asked = self._work = 0
        self._is_compatible = False
        nodes = list(ast.walk(tree))
        for node in nodes:
            self._take(node)
        for node in nodes:  # parameters, and what loops and regions bind
            if isinstance(node, ast.arg):
                self._bound.setdefault(node.arg, []).append(OTHER)
            elif isinstance(getattr(node, "ctx", None), ast.Store) and id(node) not in self._taken:
                self._bind(node, OTHER)
        self._is_compatible = any(
            "paddle.enable_compat" in self.origins(node.func)
            for node in nodes
            if isinstance(node, ast.Call) and last_name(node.func) == "enable_compat"
        )

    # -- what binds them

    def _take(self, node: Any) -> None:
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._bind(target, node.value)
            case ast.AnnAssign() | ast.NamedExpr() if node.value is not None:
                self._bind(node.target, node.value)
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._bind_name(node.name, node, node)

    def _bind(self, target: Any, value: Any) -> None:
        self._taken.add(id(target))
        if isinstance(target, ast.Name):
            self._bind_name(target.id, value, target)
        elif isinstance(target, ast.Attribute):
            self._attributes.setdefault(target.attr, []).append(value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            for each, item in zip(target.elts, items, strict=False):
                self._bind(each, item)

    def _bind_name(self, name: str, value: Origin, node: ast.AST) -> None:
        if isinstance(value, str) or not _is_fallback(node):
            self._bound.setdefault(name, []).append(value)
            if own_class(node) or own_class(getattr(node, "_parent", node)):
                self._attributes.setdefault(name, []).append(value)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        module = "" if isinstance(node, ast.Import) else f"{'.' * node.level}{node.module or ''}."
        for alias in node.names:
            whole = module + alias.name
            if not alias.asname and not module:  # import a.b binds a
                whole = alias.name.partition(".")[0]
            self._bind_name(alias.asname or whole.rpartition(".")[2], whole, node)

    # -- what they may be

    def origins(self, node: ast.AST) -> list[Origin]:
        """Everything that an expression may be; what cannot be followed is the expression itself."""
        if not self._asked:
            self._found = {}
        if id(node) in self._found:
            return self._found[id(node)]
        self._work += 1
        if self._work > MOST_WORK:
            raise RecursionError
        self._found[id(node)] = []  # while it is asked for
        self._asked += 1
        found = self._found[id(node)] = list(dict.fromkeys(self._of_parts(node)))
        self._asked -= 1
        return found

    def _of_parts(self, node: Any) -> Iterator[Origin]:
        match node:
            case ast.Name():
                stars = [each[:-1] for each in self._bound.get("*", ()) if isinstance(each, str)]
                yield from self._of(
                    self._bound.get(node.id) or [f"{module}{node.id}" for module in stars]
                )
            case ast.Attribute():
                yield from self._attribute(node.value, node.attr)
            case ast.IfExp():
                yield from self._of([node.body, node.orelse])
            case ast.BoolOp():
                yield from self._of(node.values)
            case ast.Call():
                yield from self._result(node)
            case _:
                yield node if isinstance(node, FOLLOWED) else OTHER

    def _of(self, nodes: Iterable[Any]) -> Iterator[Origin]:
        for each in nodes:
            yield from [each] if isinstance(each, str) else self.origins(each)

    def _attribute(self, value: ast.AST, name: str) -> Iterator[Origin]:
        """``value.name``: of a library, by its name; of the script, whatever sets one of that name."""
        bases = self.origins(value)
        for base in bases:
            made = [base] if isinstance(base, str) else []
            if isinstance(base, ast.Call) and name in LAST_NAMES:
                made = self.made(base)
            yield from (f"{each}.{name}" for each in made if each.count(".") < DEEPEST)
        if not bases or not all(isinstance(base, str) for base in bases):
            yield from self._of(self._attributes.get(name, ()))

    def _result(self, node: ast.Call) -> Iterator[Origin]:
        match node:
            case ast.Call(ast.Name("getattr"), [of, ast.Constant(str(name)), *_]):
                yield from self._attribute(of, name)
                return
        called = self.origins(node.func)
        for each in called or [OTHER]:
            if isinstance(each, FUNCTIONS):
                yield from self._returned(each)
            elif each in RETURNS_ITS_ARGUMENT:
                yield from self._of(node.args[:1])
            else:
                yield node

    def _returned(self, function: Any) -> Iterator[Origin]:
        returns = [each.value for each in ast.walk(function) if isinstance(each, ast.Return)]
        returns = [function.body] if isinstance(function, ast.Lambda) else returns
        yield from self._of(filter(None, returns))

    # -- of a library

    def made(self, call: ast.Call) -> list[str]:
        """The names of a library that ``call`` may call: of a class of the script, its bases'."""
        found: list[str] = []
        for each in self.origins(call.func):
            if isinstance(each, str):
                found.append(each)
            elif isinstance(each, ast.ClassDef):
                found += self.bases(each)
            elif isinstance(each, ast.Call):
                found += self.bound(each)
        return found

    def bases(self, cls: ast.ClassDef) -> list[str]:
        """The classes of a library that one of the script derives from."""
        return [each for base in cls.bases for each in self.origins(base) if isinstance(each, str)]

    def bound(self, call: ast.Call) -> list[str]:
        """The names of a library that a ``functools.partial`` goes on to call."""
        if not call.args or BINDS_ARGUMENTS not in self.origins(call.func):
            return []
        return [each for each in self.origins(call.args[0]) if isinstance(each, str)]

    def may_be_known(self, name: str) -> bool:
        """Whether a dialect may know what is called by a name, or by an attribute of that name."""
        return name in KNOWN or name in self._bound or name in self._attributes

    def resolved(self, qualified: str) -> str | None:
        """The name that a dialect has for one of a library."""
        if self._is_compatible and qualified.startswith("torch."):
            qualified = f"paddle{qualified.removeprefix('torch')}"
        return next((name for _, name in resolved(qualified)), None)


def _is_fallback(node: ast.AST) -> bool:
    """Whether something stands in for what an older version of a library has not."""
    handler = next((each for each in parents(node) if isinstance(each, ast.ExceptHandler)), None)
    tried = getattr(handler, "_parent", None)
    return isinstance(tried, ast.Try) and any(isinstance(each, IMPORTS) for each in tried.body)
