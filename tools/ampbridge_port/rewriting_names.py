"""What each expression of a script may be, in whichever branch it was bound.

A recipe is read under one set of conditions; a script that is rewritten goes on under any. So a name
stands here for everything that the script binds to it, wherever that happens.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from ampbridge_port.reader.dialects import LAST_NAMES, resolved
from ampbridge_port.reader.source import FUNCTIONS, function_of, last_name, own_class, parents

Origin = str | ast.AST
"""What an expression may be: something of a library, by its name, or a node of the script."""

RETURNS_ITS_ARGUMENT = ("paddle.distributed.fleet.distributed_scaler", "copy.copy", "copy.deepcopy")
BINDS_ARGUMENTS = "functools.partial"
IMPORTS = (ast.Import, ast.ImportFrom)
FOLLOWED = (
    *FUNCTIONS,
    *(ast.ClassDef, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict),
    *(ast.ListComp, ast.GeneratorExp),
)
OTHER = ast.Pass()
"""Whatever else an expression may be: a number that is computed, a call that no dialect knows."""
KNOWN = LAST_NAMES | {"zip", "enumerate", "list", "reversed", "copy", "deepcopy", "partial"}
"""The last names of what dialects know, or of what passes its arguments on."""
MOST_WORK = 2_000_000
"""As much that expressions may be is looked at, at most; a script of 3,000 lines needs 20,000."""
DEEPEST = 8
"""No name of a library has more dots."""


class Names:
    """The bindings of a script's names and attributes, and what follows from them.

    An expression may be whatever those may be that it is made of. One that is asked for within itself,
    in a loop of names, adds nothing there.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._local: dict[tuple[int, str], list[Origin]] = {}
        self._bound: dict[str, list[Origin]] = {}
        self._attributes: dict[str, list[Origin]] = {}
        self._calls: dict[str, list[ast.Call]] = {}
        self._found: dict[int, list[Origin]] = {}
        self._asked = 0
        self._returns: dict[int, list[ast.expr | None]] = {}
        self._parts: dict[tuple[int, int | None], ast.expr] = {}
        self._work = 0
        self._is_compatible = False
        for node in ast.walk(tree):
            self._take(node)
        self._is_compatible = any(
            "paddle.enable_compat" in self.origins(call.func)
            for call in self._calls.get("enable_compat", ())
        )

    # -- what binds them

    def _take(self, node: Any) -> None:
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._bind(target, node.value)
            case ast.AnnAssign() | ast.NamedExpr() if node.value is not None:
                self._bind(node.target, node.value)
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                self._bind(node.target, self._part(node.iter, None))
            case ast.withitem() if node.optional_vars is not None:
                self._bind(node.optional_vars, node.context_expr)
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case ast.arg():
                self._local.setdefault((id(node._parent._parent), node.arg), []).append(node)  # type: ignore[attr-defined]
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._bind_name(node.name, node, node)
            case ast.Call():
                self._calls.setdefault(last_name(node.func), []).append(node)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._bind_name(target.id, value, target)
        elif isinstance(target, ast.Attribute):
            self._attributes.setdefault(target.attr, []).append(value)
        elif isinstance(target, ast.Subscript):  # scalers["generator"] = GradScaler()
            self._bind(target.value, ast.List([value], ast.Load()))
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, each in enumerate(target.elts):
                self._bind(each, self._part(value, index))

    def _bind_name(self, name: str, value: Origin, node: ast.AST) -> None:
        if not isinstance(value, str) and _is_fallback(node):
            return
        self._bound.setdefault(name, []).append(value)
        self._local.setdefault((id(function_of(node)), name), []).append(value)
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
                yield from self._of(self._bindings(node))
            case ast.Attribute():
                yield from self._attribute(node.value, node.attr)
            case ast.arg():
                yield from self._passed(node)
            case ast.IfExp():
                yield from self._of([node.body, node.orelse])
            case ast.BoolOp():
                yield from self._of(node.values)
            case ast.NamedExpr() | ast.Await():
                yield from self.origins(node.value)
            case ast.Subscript():
                yield from self._item(node)
            case ast.Call():
                yield from self._result(node)
            case _:
                yield node if isinstance(node, FOLLOWED) else OTHER

    def _of(self, nodes: Iterable[Any]) -> Iterator[Origin]:
        for each in nodes:
            yield from [each] if isinstance(each, str) else self.origins(each)

    def _bindings(self, node: ast.Name) -> list[Origin]:
        """Those of the functions around it, else any of that name: ``global`` may reach them."""
        around: Any = function_of(node)
        while around is not None:
            if found := self._local.get((id(around), node.id)):
                return found
            around = function_of(around)
        stars = [each[:-1] for each in self._bound.get("*", ()) if isinstance(each, str)]
        return self._bound.get(node.id) or [f"{module}{node.id}" for module in stars]

    def _attribute(self, value: ast.AST, name: str) -> Iterator[Origin]:
        """``value.name``: of a library, by its name; of the script, whatever sets one of that name."""
        bases = self.origins(value)
        for base in bases:
            made = [base] if isinstance(base, str) else []
            if isinstance(base, ast.Call) and name in LAST_NAMES:
                made = self.made(base)
            yield from (f"{each}.{name}" for each in made if each.count(".") < DEEPEST)
            if isinstance(base, ast.ClassDef):
                inherited = (f"{each}.{name}" for each in self.bases(base))
                yield from (each for each in inherited if self.resolved(each))
        if not bases or not all(isinstance(base, str) for base in bases):
            for each in self._attributes.get(name, ()):
                marks = getattr(each, "decorator_list", ())
                is_property = any(last_name(mark).endswith("property") for mark in marks)
                yield from (self._returned(each) if is_property else self._of([each]))

    def _passed(self, parameter: ast.arg) -> Iterator[Origin]:
        """What the script passes for a parameter; where it is called elsewhere, what has its name."""
        name, function = parameter.arg, parameter._parent._parent  # type: ignore[attr-defined]
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        owner = own_class(function)
        if owner is not None and names[:1] == [name]:
            yield owner  # self
            return
        is_made = owner is not None and function.name == "__init__"
        called = owner.name if owner is not None and is_made else getattr(function, "name", "")
        names = names[1:] if owner is not None else names
        defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
        given: list[Any] = [defaults[name]] if name in defaults else []
        for call in self._calls.get(called, ()):
            given += [each.value for each in call.keywords if each.arg == name]
            given += call.args[names.index(name) :][:1] if name in names else []
        found = list(self._of(given))
        if not any(isinstance(each, (str, ast.Call)) for each in found):
            found += self._of(self._bound.get(name, ()))
        yield from found

    def _item(self, node: ast.Subscript) -> Iterator[Origin]:
        """An item of a list or a dictionary; any of them, where its key is not known."""
        key = getattr(node.slice, "value", None)
        for of in self.origins(node.value):
            match of:
                case ast.List() | ast.Tuple() | ast.Set():
                    known = isinstance(key, int) and -len(of.elts) <= key < len(of.elts)
                    items = [of.elts[key]] if known else of.elts  # type: ignore[index]
                case ast.Dict():
                    pairs = zip(of.keys, of.values, strict=True)
                    items = [v for k, v in pairs if getattr(k, "value", k) == key] or of.values
                case ast.ListComp() | ast.GeneratorExp():
                    items = [of.elt]
                case ast.Call():  # zip(models, scalers)
                    items = [self._part(each, None) for each in of.args]
                case _:
                    items = []
            yield from self._of(items)

    def _part(self, value: ast.expr, key: int | None) -> ast.expr:
        """``value[key]``; any item for None."""
        if isinstance(value, (ast.Tuple, ast.List)) and key is not None and key < len(value.elts):
            return value.elts[key]
        part = ast.Subscript(value, ast.Constant(key), ast.Load())
        return self._parts.setdefault((id(value), key), part)

    def _result(self, node: ast.Call) -> Iterator[Origin]:
        match node:
            case ast.Call(ast.Name("getattr"), [of, ast.Constant(str(name)), *_]):
                yield from self._attribute(of, name)
                return
        name = last_name(node.func)
        if name and not self.may_be_known(name):
            yield OTHER
            return
        called = self.origins(node.func)
        for each in called:
            if isinstance(each, FUNCTIONS):
                yield from self._returned(each)
            elif each in RETURNS_ITS_ARGUMENT:
                yield from self._of(node.args[:1])
            else:
                yield node
        if not called:
            yield node

    def _returned(self, function: Any) -> Iterator[Origin]:
        if id(function) not in self._returns:
            returns = [each.value for each in ast.walk(function) if isinstance(each, ast.Return)]
            is_lambda = isinstance(function, ast.Lambda)
            self._returns[id(function)] = [function.body] if is_lambda else returns
        yield from self._of(filter(None, self._returns[id(function)]))

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
