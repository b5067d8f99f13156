"""Follows a module statement by statement without running it.

Both branches of a condition that cannot be known are followed, and what they leave is joined. Loops
over what is not known are followed once, with counters unknown. Functions that nothing calls are
followed at last, with parameters unknown; those that they call are followed from there. The calls met
on the way are ``events``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

import libcst as cst

from ampbridge_port.interpreter.calls import name_of
from ampbridge_port.interpreter.carrying import Target, assigned, carried
from ampbridge_port.interpreter.configured import Configured
from ampbridge_port.interpreter.decisions import (
    TRUE,
    Atom,
    Condition,
    both,
    cycle_of,
    either,
    negation,
)
from ampbridge_port.interpreter.evaluate import BINARY
from ampbridge_port.interpreter.expressions import MOST_ITEMS, library_base
from ampbridge_port.interpreter.values import (
    Argument,
    Attributes,
    Choice,
    Class,
    Constant,
    Container,
    Formula,
    Frame,
    Function,
    Instance,
    Items,
    Library,
    Lookup,
    Loop,
    Made,
    Method,
    Passed,
    Run,
    Table,
    Unknown,
    Value,
)

LONGEST_UNROLLED = 8
# What the result of a command line's parser is usually passed on as.
OPTIONS = ("args", "opt", "opts", "options", "flags", "FLAGS")
CALLED = re.compile(r"(?<![\w.])(?<!def )((?:self\.)?\w+)\(")
"""What a function calls by its name, or of its own object."""
WITHOUT_GRADIENTS = ("no_grad", "inference_mode")


class Flow(Enum):
    """How a block ends."""

    ON = "on"
    RETURNS = "returns"
    SKIPS = "skips"
    LEAVES = "leaves"
    RAISES = "raises"


class Interpreter(Configured):
    """Statements."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._functions: list[Function] = []
        self._classes: list[Class] = []

    def run(self) -> None:
        """Follow the module, then what nothing in it has called."""
        self._block(self.source.module.body)
        for function in self._callers_first(None):
            if function.frame.root is self.module:
                self._run_uncalled(function)
        for cls in self._classes:
            if cls.frame.root is self.module or self._is_run_by_a_library(cls):
                self._run_class(cls)
        for function in self._functions:
            if function.frame.root is self.module:
                self._run_uncalled(function)
        for handed in self.handed:
            self._run_handed(handed)

    def _is_run_by_a_library(self, cls: Class) -> bool:
        """Whether an object of a class is made whose other methods a library calls."""
        base = library_base(cls) or "builtins.object"
        return id(cls.node) in self.instances and not base.startswith("builtins.")

    def _run_handed(self, handed: Function | Method) -> None:
        """A function of another module that something unknown was given, to call it."""
        function = handed if isinstance(handed, Function) else handed.function
        if function is None or id(function.node) in self.runs:
            return
        me: tuple[Passed, ...] = ()
        if isinstance(handed, Method) and function.kind != "static":
            me = (Passed(None, handed.receiver, function.node),)
        self.call_function(
            function, (*me, *self._any_arguments(function)[len(me) :]), function.node
        )

    def _run_uncalled(self, function: Function) -> None:
        if id(function.node) not in self.runs:
            self.call_function(function, self._any_arguments(function), function.node)

    def _callers_first(self, owner: Class | None) -> Iterator[Function]:
        """The functions of a class, or of none; those that another one calls come last.

        A helper has the arguments of its caller then, instead of its defaults.
        """
        uncalled = [f for f in self._functions if f.owner is owner and id(f.node) not in self.runs]
        called = {name for each in uncalled for name in CALLED.findall(self.text(each.node))}
        prefix = "" if owner is None else "self."
        yield from (each for each in uncalled if prefix + each.name not in called)
        yield from (each for each in self._functions if each.owner is owner)

    def _run_class(self, cls: Class) -> None:
        instance = self.instances.get(id(cls.node))
        if instance is None:
            initialize = self.in_class(cls, "__init__")
            passed = self._any_arguments(initialize)[1:] if isinstance(initialize, Function) else ()
            made = self.instantiate(cls, passed, cls.node, "")
            assert isinstance(made, Instance)
            instance = made
        for function in self._callers_first(cls):
            if id(function.node) not in self.runs:
                me = () if function.kind == "static" else (Passed(None, instance, function.node),)
                others = self._any_arguments(function)[len(me) :]
                self.call_function(function, (*me, *others), function.node)

    def _any_arguments(self, function: Function) -> tuple[Passed, ...]:
        """Parameters of a function that may be called with anything."""
        if isinstance(function.node, cst.Lambda):
            return ()
        parameters = function.node.params
        passed = [
            Passed(None, self._any_argument(each, function), each)
            for each in (*parameters.posonly_params, *parameters.params)
        ]
        for each in parameters.kwonly_params:
            passed.append(Passed(each.name.value, self._any_argument(each, function), each))
        if parameters.star_kwarg is not None:
            name = parameters.star_kwarg.name
            passed.append(Passed(None, Unknown(name.value, name), name, "**"))
        return tuple(passed)

    def _any_argument(self, parameter: cst.Param, function: Function) -> Value:
        name = parameter.name.value
        configuration = self.any_configuration(parameter)
        if configuration is not None:
            return configuration
        if name in OPTIONS and len(self.parsers) == 1:
            return self.parsers[0]
        usual = self.default_of(function.defaults.get(name, Constant(None)))
        if usual is not None and usual.value is not None:
            return Argument(name, parameter, f"a call of {function.name}", usual.value)
        annotation = parameter.annotation.annotation if parameter.annotation else None
        boolean = isinstance(annotation, cst.Name) and annotation.value == "bool"
        return Unknown(name, parameter, boolean)

    # -- blocks

    def follow_block(self, statements: Sequence[cst.CSTNode]) -> None:
        """Follow the body of a module."""
        self._block(statements)

    def _block(self, statements: Sequence[cst.CSTNode]) -> Flow:
        guards = len(self.guards)
        try:
            for statement in statements:
                flow = self._statement(statement)
                if flow is not Flow.ON:
                    return flow
            return Flow.ON
        finally:
            del self.guards[guards:]

    def _statement(self, node: cst.CSTNode) -> Flow:
        self.count_statement()
        if isinstance(node, (cst.SimpleStatementLine, cst.IndentedBlock, cst.SimpleStatementSuite)):
            return self._each(node.body)
        follow: Callable[[Any], Flow | None] | None
        follow = getattr(self, f"_on_{type(node).__name__}", None)
        return (follow(node) if follow else None) or Flow.ON

    def _each(self, statements: Sequence[cst.CSTNode]) -> Flow:
        for statement in statements:
            flow = self._statement(statement)
            if flow is not Flow.ON:
                return flow
        return Flow.ON

    # -- simple statements

    def _on_Expr(self, node: cst.Expr) -> None:
        self.value(node.value)

    def _on_Assign(self, node: cst.Assign) -> None:
        first = node.targets[0].target
        plain = isinstance(first, (cst.Name, cst.Attribute))
        value = self.value(node.value, self.text(first) if plain else "")
        for target in node.targets:
            self.assign(target.target, value)

    def _on_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value, self.text(node.target)))
        elif self.frame.is_class and isinstance(node.target, cst.Name):
            self.bind(node.target.value, Unknown(node.target.value, node.target))

    def _on_AugAssign(self, node: cst.AugAssign) -> None:
        left, right = self.value(node.target), self.value(node.value)
        kind = type(node.operator).__name__.removesuffix("Assign")
        if kind == "Divide":
            self.divisors.append(right)
        contents = [self.content(each) for each in (left, right)]
        if isinstance(left, Container):
            changed: Value
            if all(isinstance(each, (Items, Table)) for each in contents):
                made = self.of_collections(kind, contents[0], contents[1], node)
                changed = self.content(made)
            else:
                changed = self.unknown(node)
            self.memory.set(left, "content", changed)
            return
        known = kind in BINARY and not all(isinstance(each, Items) for each in contents)
        value = self.apply(BINARY[kind], node, left, right) if known else self.unknown(node)
        self.assign(node.target, value)

    def assign(self, target: cst.BaseExpression, value: Value) -> None:
        """Bind the names, attributes and items of ``target``."""
        if isinstance(target, cst.Name):
            self.bind(target.value, value)
        elif isinstance(target, cst.Attribute):
            self.set_attribute(self.value(target.value), target.attr.value, value, target)
        elif isinstance(target, cst.Subscript):
            self._set_item(target, value)
        elif isinstance(target, (cst.Tuple, cst.List)):
            items = self.iterated(value) if not isinstance(value, Container) else None
            items = items or self.iterated(value)
            matches = items is not None and len(items) == len(target.elements)
            for index, element in enumerate(target.elements):
                part = items[index] if matches and items else self._part_of(value, element.value)
                self.assign(element.value, part)

    def _part_of(self, value: Value, target: cst.BaseExpression) -> Value:
        held = tuple(self.made_in(value))
        return Unknown(partial(self.text, target), target, holds=held)

    def _set_item(self, target: cst.Subscript, value: Value) -> None:
        base = self.value(target.value)
        content = self.content(base)
        if isinstance(base, Attributes):
            self.set_named(base.of, self._key(target), value, target)
        if isinstance(base, Library) and self.known.knows(f"{base.qualified}.__setitem__"):
            key = self._key(target)
            if isinstance(key, Constant) and not self.known.may_set(base.qualified, key.value):
                return
            passed = (Passed(None, key, target), Passed(None, value, target))
            self.event(f"{base.qualified}.__setitem__", passed, target, "")
        if not isinstance(base, Container) or not isinstance(target.slice[0].slice, cst.Index):
            return
        key = self._key(target)
        if isinstance(key, Constant):
            content = self.with_item(content, key.value, value, target)
        else:
            content = self.unknown(target)
        self.memory.set(base, "content", content)

    def _key(self, node: cst.Subscript) -> Value:
        index = node.slice[0].slice
        return self.value(index.value) if isinstance(index, cst.Index) else self.unknown(node)

    def _on_Return(self, node: cst.Return) -> Flow:
        value = Constant(None) if node.value is None else self.value(node.value)
        self._returns.append((self._guarded_by(), value))
        return Flow.RAISES if node.value is None else Flow.RETURNS

    def _guarded_by(self) -> Condition:
        """All guards of the function that is followed, as one."""
        *first, last = self.guards[self._depth :] or (TRUE,)
        known, condition = self._joint
        if first[: len(known)] != known:
            known, condition = [], TRUE
        for guard in first[len(known) :]:
            condition = both(condition, guard)
        self._joint = first, condition
        return both(condition, last)

    def _on_Raise(self, node: cst.Raise) -> Flow:
        return Flow.RAISES

    def _on_Break(self, node: cst.Break) -> Flow:
        self._breaks += 1
        return Flow.LEAVES

    def _on_Continue(self, node: cst.Continue) -> Flow:
        return Flow.SKIPS

    def _on_Global(self, node: cst.Global) -> None:
        self.frame.outer_names.update(item.name.value for item in node.names)

    _on_Nonlocal = _on_Global

    # -- compound statements

    def _on_If(self, node: cst.If) -> Flow:
        condition = self.holds(self.value(node.test), node.test)
        orelse = node.orelse
        no: Callable[[], Flow] = lambda: Flow.ON  # noqa: E731
        if isinstance(orelse, cst.If):
            no = lambda: self._on_If(orelse)  # noqa: E731
        elif isinstance(orelse, cst.Else):
            no = lambda: self._block([orelse.body])  # noqa: E731
        return self._fork(condition, lambda: self._block([node.body]), no)

    def _fork(self, condition: Condition, yes: Callable[[], Flow], no: Callable[[], Flow]) -> Flow:
        known = self.known_truth(condition)
        if known is not None:
            return yes() if known else no()
        flows: list[Flow] = []
        left = self._branch(condition, lambda: flows.append(yes()))
        right = self._branch(negation(condition), lambda: flows.append(no()))
        ends = [flow is not Flow.ON for flow in flows]
        if ends == [True, False]:
            return self._after(right, negation(condition), flows[0])
        if ends == [False, True]:
            return self._after(left, condition, flows[1])
        self.memory.join(condition, left, right)
        return flows[0] if all(ends) else Flow.ON

    def _after(self, changes: Any, condition: Condition, ended: Flow) -> Flow:
        """Go on where the other branch has ended: what follows depends on the condition."""
        self.memory.restore(changes)
        by_turns = cycle_of(condition) is not None
        skips = ended in (Flow.SKIPS, Flow.LEAVES)
        if ended is Flow.RETURNS or (skips and by_turns):
            self.guards.append(condition)
        return Flow.ON

    def _on_For(self, node: cst.For) -> Flow:
        items = self.iterated(self.value(node.iter))
        most = LONGEST_UNROLLED if len(node.body.body) > 1 else MOST_ITEMS
        if items is not None and len(items) <= most:
            self._unrolled(node, items)
            return Flow.ON
        self._loop(node)
        if node.orelse is not None:
            self._block([node.orelse.body])
        return Flow.ON

    def _unrolled(self, node: cst.For, items: Sequence[Value]) -> None:
        """Each turn; where it is not known whether one was the last, what they assign is not, either."""
        outer, self._breaks, flow = self._breaks, 0, Flow.ON
        for item in items:
            self.assign(node.target, item)
            flow = self._block([node.body])
            if flow is Flow.LEAVES:
                break
        perhaps, self._breaks = self._breaks > (flow is Flow.LEAVES), outer
        if node.orelse is not None and flow is not Flow.LEAVES:
            self._block([node.orelse.body])
        if perhaps:
            self._forget(assigned([node], self.text).values())

    def _forget(self, targets: Iterable[Target]) -> None:
        """What they hold is not known, where it is plain data."""
        for target in targets:
            if _is_plain(self.value(target)):
                self.assign(target, self.unknown(target))

    def _loop(self, node: cst.For | cst.While) -> None:
        """The body of a loop once, for any turn; what it fills is not known afterwards.

        Nor is what a turn makes of what the last one has left.
        """
        loops, breaks = len(self.loops), self._breaks
        turn = [node.test, node.body] if isinstance(node, cst.While) else [node.body]
        self._forget(carried(turn, self.text))
        if isinstance(node, cst.For):
            self.loops.append(Loop(node, self._turns(node.iter)))
        with self.memory.watched() as before:
            if isinstance(node, cst.For):
                self._any_item(node.target)
                self._count_turns(node)
            self._block([node.body])
        del self.loops[loops:]
        self._breaks = breaks
        filled = {
            key: old for key, old in before.items() if key[1] == "content" and old is not None
        }
        what = node.iter if isinstance(node, cst.For) else node.test
        here = {name.rpartition(".")[2] for name in assigned(turn, self.text)}
        for key, old in before.items():  # by a function that it calls
            is_default = isinstance(self.memory.at(key), Argument)
            if key[1] not in here and old is not None and _is_plain(old) and not is_default:
                filled[key] = old
        self.memory.restore(dict.fromkeys(filled, self.unknown(what)))

    def _turns(self, node: cst.BaseExpression) -> Value | None:
        """How often a loop over ``range(...)`` runs."""
        if not isinstance(node, cst.Call) or self.text(node.func) != "range":
            return None
        bounds = [self.value(each.value) for each in node.args if not each.star]
        if len(bounds) == 1:
            return bounds[0]
        return self.apply(lambda *all: len(range(*all)), node, *bounds)

    def _count_turns(self, node: cst.For) -> None:
        counts = self.text(node.iter.func) if isinstance(node.iter, cst.Call) else ""
        target: cst.BaseExpression = node.target
        if counts == "enumerate" and isinstance(target, cst.Tuple):
            target = target.elements[0].value
        if counts in ("enumerate", "range") and isinstance(target, cst.Name):
            self.turns.add(target.value)

    def _any_item(self, target: cst.BaseExpression) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._any_item(element.value)
        else:
            self.assign(target, self.unknown(target))

    def _on_While(self, node: cst.While) -> Flow:
        if self.known_truth(self.holds(self.value(node.test), node.test)) is not False:
            self._loop(node)
        return Flow.ON

    def _on_Try(self, node: cst.Try) -> Flow:
        """The body is taken to succeed."""
        flow = self._block([node.body])
        if node.orelse is not None and flow is Flow.ON:
            flow = self._block([node.orelse.body])
        if node.finalbody is not None:
            self._block([node.finalbody.body])
        return flow

    _on_TryStar = _on_Try

    def _on_With(self, node: cst.With) -> Flow:
        regions, plain = len(self.regions), self.without_gradients
        for item in node.items:
            value = self.value(item.item)
            if name_of(item.item) in WITHOUT_GRADIENTS:
                self.without_gradients += 1
            self.enter(value, self._made_before(item.item))
            if item.asname is not None:
                self.assign(item.asname.name, value)
        flow = self._block([node.body])
        del self.regions[regions:]
        self.without_gradients = plain
        return flow

    def _made_before(self, node: cst.BaseExpression) -> list[Made]:
        """What holds a context by itself: the decorated model of ``model.no_sync()`` is no region."""
        owner = (
            node.func.value
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
            else None
        )
        return (
            self.made_in(self.value(owner)) if isinstance(owner, (cst.Name, cst.Attribute)) else []
        )

    def enter(self, value: Value, before: Sequence[Made] = ()) -> None:
        """A context is entered here, which is made of more than what was made ``before``."""
        entered = [made.event for made in self.made_in(value) if made not in before]
        for event in entered:
            event.entered.append(self.entry())
        self.regions.extend(entered)

    def _on_Match(self, node: cst.Match) -> Flow:
        subject = self.value(node.subject)

        def from_case(index: int) -> Flow:
            if index == len(node.cases):
                return Flow.ON
            case = node.cases[index]
            condition = self._matches(case.pattern, subject)
            if case.guard is not None:
                condition = both(condition, self.holds(self.value(case.guard), case.guard))
            return self._fork(
                condition, lambda: self._block([case.body]), lambda: from_case(index + 1)
            )

        return from_case(0)

    def _matches(self, pattern: cst.MatchPattern, subject: Value) -> Condition:
        if isinstance(pattern, cst.MatchValue):
            value = self.value(pattern.value)
            return self._compared("Equal", subject, value, pattern)
        if isinstance(pattern, cst.MatchOr):
            condition: Condition = negation(TRUE)
            for each in pattern.patterns:
                condition = either(condition, self._matches(each.pattern, subject))
            return condition
        if isinstance(pattern, cst.MatchAs) and pattern.pattern is None:
            return TRUE
        return Atom(self.text(pattern))

    # -- functions and classes

    def _on_FunctionDef(self, node: cst.FunctionDef) -> None:
        decorators = [self.value(each.decorator) for each in node.decorators]
        kinds = {"staticmethod": "static", "property": "property", "cached_property": "property"}
        names = [self.text(each.decorator).rpartition(".")[2] for each in node.decorators]
        kind = next((kinds[name] for name in names if name in kinds), "function")
        frame = self.frame
        owner = frame.owner if frame.is_class else None
        defaults = self._defaults(node.params)
        function = Function(node.name.value, node, frame, defaults, owner, kind)
        self._functions.append(function)
        for value in decorators:
            for made in self.made_in(value):
                entry = self.entry()
                made.event.entered.append(
                    replace(entry, runs=(*entry.runs, Run(node.name.value, node)))
                )
        self.bind(node.name.value, function)

    def _defaults(self, parameters: cst.Parameters) -> dict[str, Value]:
        every = (*parameters.posonly_params, *parameters.params, *parameters.kwonly_params)
        return {each.name.value: self.value(each.default) for each in every if each.default}

    def _Lambda(self, node: cst.Lambda) -> Value:
        return Function("<lambda>", node, self.frame, self._defaults(node.params))

    def run_function(self, function: Function, node: cst.CSTNode) -> Value:
        """Follow the body of a function whose parameters are bound; what it returns."""
        if isinstance(function.node, cst.Lambda):
            return self.value(function.node.body)
        outer, self._returns = self._returns, []
        depth, self._depth = self._depth, len(self.guards)
        try:
            self._block([function.node.body])
            value: Value = Constant(None)
            for condition, each in reversed(self._returns):
                value = each if condition == TRUE else self.choice(condition, each, value, node)
            return self.resolved(value)
        finally:
            self._returns, self._depth = outer, depth

    def _on_ClassDef(self, node: cst.ClassDef) -> None:
        bases = tuple(self.value(each.value) for each in node.bases if not each.star)
        decorators = [self.text(each.decorator).partition("(")[0] for each in node.decorators]
        is_dataclass = any(each.endswith("dataclass") for each in decorators)
        frame = Frame(self.frame, is_class=True)
        tuples = ("typing.NamedTuple", "pydantic.BaseModel")
        is_dataclass = is_dataclass or any(
            isinstance(base, Library) and base.qualified in tuples for base in bases
        )
        cls = Class(node.name.value, node, frame, bases, is_dataclass)
        frame.owner = cls
        self.memory.own(frame)
        outer, self.frame = self.frame, frame
        try:
            self._block([node.body])
        finally:
            self.frame = outer
        self._classes.append(cls)
        self.bind(node.name.value, cls)


def _is_plain(value: Value) -> bool:
    """Whether it may be a number, a text or the like. None is what waits for its value."""
    if isinstance(value, Choice):
        return _is_plain(value.yes) or _is_plain(value.no)
    if isinstance(value, Items):
        return any(map(_is_plain, value.items))
    if isinstance(value, Constant):
        return value.value is not None
    return isinstance(value, (Argument, Formula, Lookup))
