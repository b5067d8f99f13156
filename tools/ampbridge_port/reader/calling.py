"""Calls: the program's own functions and classes are followed, those of libraries are noted."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ampbridge_port.reader import built_in, command_line, gin, libraries, operations, site
from ampbridge_port.reader.dialects import is_known
from ampbridge_port.reader.source import FUNCTIONS, last_name, module_of, text_of
from ampbridge_port.reader.values import (
    Bound,
    Class,
    Dictionary,
    Frame,
    Function,
    Generator,
    Instance,
    Items,
    Known,
    Library,
    Made,
    Method,
    Passed,
    Scope,
    Super,
    Unknown,
    Value,
    held_by,
)

if TYPE_CHECKING:
    from ampbridge_port.reader.machine import Machine

MOST_RUNS = 40
MOST_NESTED = 2
"""As often is a function followed inside of itself."""
DEEPEST = 80
WRAPPED = ("module", "model", "_orig_mod", "_layers", "network")
"""Attributes of a wrapper that hold what it wraps."""
KINDS = ("staticmethod", "classmethod", "property")


def evaluated(machine: Machine, node: ast.Call, scope: Scope) -> Value:
    """What a call gives."""
    function = machine.value(node.func, scope)
    if isinstance(function, Library) and function.qualified == "builtins.super":
        return _super(node, scope)
    return call(machine, function, arguments(machine, node, scope), node, scope)


def arguments(machine: Machine, node: ast.Call, scope: Scope) -> tuple[Passed, ...]:
    """The arguments of a call, with those that ``*`` and ``**`` stand for, as far as they are known."""
    passed: list[Passed] = []
    for each in node.args:
        if isinstance(each, ast.Starred):
            value = machine.value(each.value, scope)
            items = machine.items_of(value)
            if items is None:
                passed.append(Passed(value, each.value, star="*"))
            else:
                passed += [Passed(item, each.value) for item in items]
        else:
            passed.append(Passed(machine.value(each, scope), each))
    for keyword in node.keywords:
        value = machine.value(keyword.value, scope)
        if keyword.arg is not None:
            passed.append(Passed(value, keyword.value, keyword.arg))
            continue
        table = operations.as_dictionary(value)
        if table is None:
            passed.append(Passed(value, keyword.value, star="**"))
            continue
        if table.rest is not None:  # it may have any of them
            passed.append(Passed(table.rest, keyword.value, star="**"))
            continue
        passed += [Passed(v, keyword.value, str(k)) for k, v in table.items.items()]
    return tuple(passed)


def call(
    machine: Machine,
    function: Value,
    passed: Sequence[Passed],
    node: ast.AST,
    scope: Scope,
    *,
    uncalled: bool = False,
) -> Value:
    """What a call of a value gives; ``uncalled``: nothing here calls it, and its arguments are unknown."""
    passed = tuple(passed)
    match function:
        case Function():
            return _followed(machine, function, None, passed, node, uncalled)
        case Bound(function=Function() as inner):
            return _followed(
                machine, inner, function.receiver, (*function.passed, *passed), node, uncalled
            )
        case Bound():
            return call(machine, function.function, (*function.passed, *passed), node, scope)
        case Class():
            return instance(machine, function, passed, node, scope, uncalled)
        case Instance():
            for name in ("__call__", "forward", "call"):
                made = method(machine, function, name, passed, node, scope)
                if made is not None:
                    return made
            run_arguments(machine, passed, node, scope)
            return noted(machine, function, "__call__", passed, node)
        case Library():
            return libraries.called(machine, function, passed, node, scope)
        case Method():
            return libraries.method_called(machine, function, passed, node, scope)
        case Made():
            return _of_wrapper(machine, function, passed, node, scope)
        case Unknown(node=ast.Attribute(attr=name)) if name not in WRAPPED:
            pass
        case Unknown(holds=Instance() as held):
            return call(machine, held, passed, node, scope)
    called = node.func if isinstance(node, ast.Call) else node
    if isinstance(called, ast.Attribute) and called.attr in ("get", "pop"):
        given = built_in.by_default(machine, function, passed, node, scope)
        if given is not None:
            return given
    run_arguments(machine, passed, node, scope)
    return noted(machine, function, last_name(called), passed, node)


def method(
    machine: Machine,
    held: Instance | Dictionary,
    name: str,
    passed: Sequence[Passed],
    node: ast.AST,
    scope: Scope,
) -> Value | None:
    """What the program's own method gives; None if its class has none of the name."""
    found = held.attributes.get(name) if isinstance(held, Instance) else None
    if found is None and held.cls is not None:
        found = held.cls.find(name)
        if isinstance(found, Function) and found.kind != "staticmethod":
            found = Bound(found, held)
    return None if found is None else call(machine, found, passed, node, scope)


# -- the program's own


def _followed(
    machine: Machine,
    function: Function,
    receiver: Value | None,
    passed: tuple[Passed, ...],
    node: ast.AST,
    uncalled: bool,
) -> Value:
    key = id(function.node)
    machine.runs[key] = machine.runs.get(key, 0) + 1
    running = sum(frame.node is function.node for frame in machine.frames)
    most = MOST_RUNS if machine.words.is_about(function.node) else 4 * MOST_RUNS
    if running > MOST_NESTED or machine.runs[key] > most or machine.depth > DEEPEST:
        return Unknown(node)
    inner = Scope(function.scope.module, function.scope, owner=function.owner)
    inner.receiver = receiver
    _bind(machine, function, inner, receiver, passed, node, uncalled)
    if _yields(function.node) and (function.kind == "contextmanager" or not uncalled):
        return Generator(function, lambda each: _run(machine, function, inner, node, each))
    return _run(machine, function, inner, node, None)


def _run(machine: Machine, function: Function, scope: Scope, node: ast.AST, each: object) -> Value:
    regions = len(machine.regions)
    body = function.node.body
    if each is not None:
        machine.yields.append(each)  # type: ignore[arg-type]
    frame = Frame(function.name, function.node, node, function.owner, len(machine.loops))
    with machine.frame(frame):
        for region in function.regions:
            machine.enter(region, node, scope)
        if isinstance(body, list):
            held, machine.returned = machine.returned, Known(None)
            signal = machine.block(body, scope)
            result: Value = machine.returned if signal == "return" else Known(None)
            if signal == "raise":
                machine.raised += 1
                result = Unknown(node)
            machine.returned = held
        else:
            result = machine.value(body, scope)
    if function.regions:
        del machine.regions[regions:]
    if each is not None:
        machine.yields.pop()
        return Unknown(node)
    return result


def _yields(node: Any) -> bool:
    """Whether a function yields itself, and not one inside of it."""
    found: bool | None = getattr(node, "_yields", None)
    left = list(node.body) if isinstance(node.body, list) else [node.body]
    while found is None:
        each = left.pop() if left else None
        if each is None or isinstance(each, (ast.Yield, ast.YieldFrom)):
            found = node._yields = each is not None
        elif not isinstance(each, (*FUNCTIONS, ast.ClassDef)):
            left.extend(ast.iter_child_nodes(each))
    return found


def _bind(
    machine: Machine,
    function: Function,
    scope: Scope,
    receiver: Value | None,
    passed: tuple[Passed, ...],
    node: ast.AST,
    uncalled: bool,
) -> None:
    """Bind the parameters of a function."""
    declared = function.node.args
    positional = [each.arg for each in (*declared.posonlyargs, *declared.args)]
    given = [each for each in passed if not each.name and not each.star]
    if receiver is not None:
        given.insert(0, Passed(receiver, node))
    names = {each.name: each for each in passed if each.name}
    unknown = next((each for each in passed if each.star), None)
    for name, each in zip(positional, given, strict=False):
        scope.names[name] = each.value
    if declared.vararg is not None:
        rest = [each.value for each in given[len(positional) :]]
        whole = not any(each.star == "*" for each in passed)
        scope.names[declared.vararg.arg] = Items("tuple", rest, whole and not uncalled)
    keywords = [*positional, *(each.arg for each in declared.kwonlyargs)]
    for name in keywords:
        if name in scope.names:
            continue
        bound = gin.binding(machine, function, name, node) if function.bound_as else None
        if name in names:
            scope.names[name] = names[name].value
        elif bound is not None:
            scope.names[name] = bound
        elif name in function.defaults and unknown is None:
            scope.names[name] = _default(machine, function, name, uncalled)
        else:
            scope.names[name] = machine.looked_up(Unknown(parameter(function, name), (name,)))
    for taken in (*declared.posonlyargs, *declared.args, *declared.kwonlyargs):
        _take_annotation(machine, function, taken, scope, node)
    if declared.kwarg is not None:
        extra = {name: each.value for name, each in names.items() if name not in keywords}
        rest_of = Unknown(node, (declared.kwarg.arg,)) if unknown is not None or uncalled else None
        scope.names[declared.kwarg.arg] = Dictionary(dict(extra), rest_of)


def _take_annotation(
    machine: Machine, function: Function, declared: ast.arg, scope: Scope, node: ast.AST
) -> None:
    """What is not known of an argument is an object of the program's class that its annotation names."""
    value = scope.names.get(declared.arg)
    if not isinstance(value, Unknown) or value.holds is not None:
        return
    if isinstance(declared.annotation, (ast.Name, ast.Attribute)):
        cls = machine.value(declared.annotation, function.scope)
        if isinstance(cls, Class) and machine.words.is_about(cls.node):
            value.holds = instance(machine, cls, (), node, function.scope, uncalled=True)


def parameter(function: Function, name: str) -> ast.arg:
    """Where a function declares a parameter."""
    declared = function.node.args
    every = (*declared.posonlyargs, *declared.args, *declared.kwonlyargs)
    return next(each for each in every if each.arg == name)


def _default(machine: Machine, function: Function, name: str, uncalled: bool) -> Value:
    default = function.defaults[name]
    if uncalled and isinstance(default, Known) and default.data is None:
        return Unknown(parameter(function, name), (name,))  # who calls it passes something
    if uncalled and isinstance(default, Known) and not default.options:
        module = module_of(function.node)
        key = f"{module.file}: {function.name}({name})"
        where = parameter(function, name)
        return machine.option(
            key, name, f"a call of {function.name}", module.place(where), default.data
        )
    return default


def instance(
    machine: Machine,
    cls: Class,
    passed: tuple[Passed, ...],
    node: ast.AST,
    scope: Scope,
    uncalled: bool = False,
) -> Value:
    """An object of a class of the program."""
    names = cls.libraries()
    if any(name.rpartition(".")[2] in ("Enum", "IntEnum", "StrEnum") for name in names):
        return passed[0].value if passed else Unknown(node)
    if any(name.rpartition(".")[2] in operations.DICTIONARIES for name in names):
        made_of = operations.dictionary_of(passed)
        made_of.cls, made_of.by_attribute = cls, True
        return operations.nested(made_of)
    if any(name.rpartition(".")[2] == "NamedTuple" for name in names):
        cls.is_dataclass = True
    if any(name.endswith(".LightningCLI") for name in names):
        return command_line.lightning_cli(site.Site(machine, cls.name, passed, node, scope), cls)
    made = Instance(cls, node=node)
    machine.runs[id(cls.node)] = machine.runs.get(id(cls.node), 0) + 1
    init = cls.find("__init__")
    if isinstance(init, Function):
        call(machine, Bound(init, made), passed, node, scope, uncalled=uncalled)
    else:
        _fill(machine, made, cls, passed, node)
    takes_all = bool(passed) and init is None and not cls.is_dataclass
    base = next((name for name in names if takes_all or is_known(name)), "")
    if base and made.made is None:
        made.made = derived(machine, made, base, passed, node)
    return made


def _fill(
    machine: Machine, made: Instance, cls: Class, passed: tuple[Passed, ...], node: ast.AST
) -> None:
    """The fields of a dataclass, and whatever else is passed by name."""
    given = [each for each in passed if not each.name and not each.star]
    for name, each in zip(cls.fields, given, strict=False):
        made.attributes[name] = each.value
    for each in passed:
        if each.name:
            made.attributes[each.name] = each.value
    if not cls.is_dataclass:
        return
    for name, default in cls.fields.items():
        if name not in made.attributes:
            default = Unknown(cls.node, (name,)) if default is None else default
            made.attributes[name] = command_line.field_default(machine, default, node)
    after = cls.find("__post_init__")
    if isinstance(after, Function):
        call(machine, Bound(after, made), (), node, cls.scope)


def derived(
    machine: Machine, made: Instance, base: str, passed: Sequence[Passed], node: ast.AST
) -> Made:
    """The object of the library's class that one of the program derives from."""
    given = {each.name for each in passed}
    own = []
    for name, value in made.attributes.items():
        if made.cls is not None and name in made.cls.fields and name not in given:
            own.append(Passed(value, command_line.field_node(made.cls, name), name))
    names = (each.scope.names.items() for each in (made.cls.lineage() if made.cls else ()))
    methods = frozenset(n for each in names for n, v in each if isinstance(v, Function))
    name = base.rpartition(".")[2]
    return Made(base, machine.note(base, name, node, (*passed, *own), overridden=methods))


def _super(node: ast.Call, scope: Scope) -> Value:
    inner: Scope | None = scope
    while inner is not None:
        if inner.owner is not None and inner.receiver is not None:
            return Super(inner.owner, inner.receiver)
        inner = inner.parent
    return Unknown(node)


# -- decorators


def decorated(machine: Machine, value: Value, decorator: ast.AST, scope: Scope) -> Value:
    """What a decorator makes of a function or a class."""
    text = text_of(decorator)
    name = text.partition("(")[0].rpartition(".")[2]
    if isinstance(value, Function):
        if name in KINDS or name == "cached_property":
            return replace(value, kind="property" if "property" in name else name)
        if text.endswith(".setter"):
            return replace(value, kind="setter")
        if name in ("contextmanager", "asynccontextmanager"):
            return replace(value, kind="contextmanager")
    if isinstance(value, Class) and name in ("dataclass", "define", "attrs"):
        value.is_dataclass = True
        return value
    made = machine.value(decorator, scope)
    registers = isinstance(made, Method) and isinstance(made.receiver, (Items, Dictionary))
    if registers or isinstance(made, (Function, Bound, Class, Instance)):
        result = call(machine, made, (Passed(value, decorator),), decorator, scope)
        is_none = isinstance(result, Known) and result.data is None
        return value if is_none or isinstance(result, Unknown) else result
    if not isinstance(value, (Function, Class)):
        return value
    if isinstance(made, Library):  # @torch.no_grad, and autocast without a call
        made = site.made_by(machine, made.qualified, (), decorator)
    if isinstance(made, Made) and made.qualified in ("gin.configurable", "gin.register"):
        return gin.configurable(machine, made, value)
    if isinstance(made, Made) and isinstance(value, Function):
        return libraries.decorated(machine, made, value, decorator)
    return value


# -- libraries' functions that are given ours


def noted(
    machine: Machine, receiver: Value | None, name: str, passed: tuple[Passed, ...], node: ast.AST
) -> Value:
    """Note a call of what is not known."""
    machine.note("", name, node, passed, receiver)
    held = filter(None, (held_by(each.value) for each in passed))
    return Unknown(node, holds=next(held, held_by(receiver)))


def run_arguments(machine: Machine, passed: Sequence[Passed], node: ast.AST, scope: Scope) -> None:
    """Functions of the program that are passed to what is not followed: it will call them, once at least."""
    spread = next((each.value for each in passed if each.name == "args"), None)
    of_trees = bool(machine.events) and machine.events[-1].qualified.startswith("jax.tree")
    for each in passed:
        function = each.value
        inner = function.function if isinstance(function, Bound) else function
        if not isinstance(inner, Function) or machine.runs.get(id(inner.node), 0) >= 2:
            continue
        if of_trees or machine.words.is_about(inner.node):
            given: list[Passed] = []
            others = [e for e in passed if e is not each and not e.name]
            if isinstance(inner.node, ast.FunctionDef) and each is passed[0] and others:
                given = _launched(machine, function, inner, others, node)
            if isinstance(spread, Items):
                count = len(inner.node.args.args) - len(spread.items) - isinstance(function, Bound)
                given = [Passed(Known(0), node)] * max(count, 0)
                given += [Passed(item, node) for item in spread.items]
            call(machine, function, given, node, scope, uncalled=not given)


def _launched(
    machine: Machine, function: Value, inner: Function, others: list[Passed], node: ast.AST
) -> list[Passed]:
    """``fabric.launch(main, devices)``: what comes behind the function, perhaps behind the launcher."""
    takes = len(inner.node.args.args) - isinstance(function, Bound)
    if takes == len(others):
        return others
    launcher = machine.events[-1].receiver if machine.events else None
    match node:
        case ast.Call(func=ast.Attribute(value=owner)) if launcher and takes == len(others) + 1:
            return [Passed(launcher, owner), *others]
    return []


def _of_wrapper(
    machine: Machine, made: Made, passed: tuple[Passed, ...], node: ast.AST, scope: Scope
) -> Value:
    """A library's object is called: a wrapper calls what it wraps."""
    for each in made.event.passed:
        inner = each.value.holds if isinstance(each.value, Unknown) else each.value
        is_wrapper = isinstance(inner, Made) and inner is not made and libraries.wraps(inner)
        if inner is not None and (is_wrapper or isinstance(inner, (Instance, Function, Bound))):
            return call(machine, inner, passed, node, scope)
    if passed and isinstance(passed[0].value, Function) and len(passed) == 1:
        function = passed[0].value  # a decorator that is called: autocast()(f)
        return replace(function, regions=(made, *function.regions))
    run_arguments(machine, passed, node, scope)
    machine.note(f"{made.qualified}.__call__", "__call__", node, passed, made)
    return Unknown(node, holds=made)
