"""Follows a program once, from its first line on, without running it.

What the program knows is known here, too; what it does not is an ``Unknown``. A condition that cannot be
known goes the way that trains in mixed precision; one that depends on an ``Option`` goes by its default,
unless ``assumed`` says otherwise. So each run is one way through the program, and ``search`` makes others:

    for each statement, in its order:
        a call of the program's own function: follow it
        a call of a library:                  note it as an Event, with the loops and regions around it
        a loop over what is known:            each turn; over anything else: one turn
"""

from __future__ import annotations

import ast
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from ampbridge_port.choosing import ACCELERATOR
from ampbridge_port.reader import built_in, calling, libraries, operations
from ampbridge_port.reader.dialects import is_known, is_known_library
from ampbridge_port.reader.modules import Finder
from ampbridge_port.reader.settings import Table
from ampbridge_port.reader.source import Module, last_name, module_of, parents, text_of
from ampbridge_port.reader.values import (
    NONE,
    Around,
    Bound,
    Class,
    Dictionary,
    Event,
    Frame,
    Function,
    Generator,
    Instance,
    Items,
    Known,
    Library,
    Loop,
    Made,
    Method,
    Model,
    ModuleOf,
    Option,
    Options,
    Passed,
    Remainder,
    Scope,
    Super,
    Turn,
    Unknown,
    Value,
    held_by,
    qualified_of,
)
from ampbridge_port.reader.words import SWITCH, TRAINS, WORDS, Words
from ampbridge_port.reading import Place

MOST_STEPS = 200_000
"""As many expressions are looked at in one run, at most: two seconds. A large trainer has 5,000."""
MOST_TURNS = 300
"""As many items of a list that is known are gone through."""
MOST_ITEMS = 20_000
"""As many items has a list, and as many characters a text, at most."""

DEEPEST = 120
"""As many calls and imports are followed within each other."""

RETURN, BREAK, CONTINUE, RAISE = "return", "break", "continue", "raise"
LEAVES: Mapping[type, str] = {ast.Break: BREAK, ast.Continue: CONTINUE, ast.Raise: RAISE}


class Exhausted(Exception):
    """A program that has too much to be followed."""


class Machine:
    """One run of a program.

    Args:
        assumed: what an option has, in the place of its default, by its key.
    """

    def __init__(
        self,
        finder: Finder,
        config: Table | None,
        config_file: str,
        assumed: Mapping[str, Any],
        words: Words,
    ) -> None:
        self.finder, self.config, self.config_file = finder, config, config_file
        self.assumed, self.words = assumed, words
        self.options: dict[str, Option] = {}
        self.events: list[Event] = []
        self.divisors: list[tuple[Value, ast.AST]] = []
        self.scopes: dict[int, Scope] = {}
        self.modules: dict[int, Module] = {}
        self.frames: list[Frame] = []
        self.loops: list[Loop] = []
        self.regions: list[Event] = []
        self.turns: list[Turn] = []
        self.without_gradients = 0
        self.yields: list[Callable[[Value], None]] = []
        self.runs: dict[int, int] = {}
        self.config_used = False
        self.flags: dict[str, Value] = {}
        self.structured: dict[tuple[str, str], Value] = {}
        self.bindings = Dictionary({})
        self.configurables: dict[str, Value] = {}
        self.raised = 0
        """How many functions ended with an exception."""
        self.steps = self.depth = 0
        self.returned: Value = Known(None)
        self._wanted: tuple[ast.AST | None, bool] = None, False
        """A condition, and the way of it that is about mixed precision."""

    # -- modules

    def run(self, script: Module) -> None:
        """Follow the script, and then what of it nobody has called.

        Raises:
            Exhausted: if it has too much to be followed; what was met until then stands in ``events``.
        """
        scope = self.module(script)
        if not any(event.method in STEPS for event in self.events):
            for module in [script, *(m for m in self.modules.values() if m is not script)]:
                self._run_uncalled(self.scopes[id(module)])
                if any(event.method in STEPS for event in self.events):
                    break
        else:
            self._run_uncalled(scope, only_words=True)

    def module(self, module: Module) -> Scope:
        """The scope of a module, which is followed when it is first imported."""
        if id(module) in self.scopes:
            return self.scopes[id(module)]
        scope = self.scopes[id(module)] = Scope(module, None)
        self.modules[id(module)] = module
        own_name = module.path.stem if module.path else "m"
        name = "__main__" if module is self.finder.script else own_name
        scope.names |= {"__name__": Known(name), "__file__": Known(module.file)}
        self.words.add(module)
        with self._apart(), self.frame(Frame("", module.tree)):
            self.block(module.tree.body, scope)
        return scope

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Without the loops and regions around an import."""
        held = self.frames, self.loops, self.regions, self.turns, self.without_gradients
        self.depth += 1
        self.frames, self.loops, self.regions, self.turns = [], [], [], []
        self.without_gradients = 0
        yield
        self.frames, self.loops, self.regions, self.turns, self.without_gradients = held
        self.depth -= 1

    def _run_uncalled(self, scope: Scope, only_words: bool = False) -> None:
        """Functions and classes that nothing has called: of a module that others import."""
        values = list(scope.names.values())
        nodes = [each.node for each in values if isinstance(each, (Function, Class))]
        called = {c for n in nodes for c in self.words.calls_of(n) - {getattr(n, "name", "")}}
        for value in sorted(values, key=lambda each: getattr(each, "name", "") in called):
            node = value.node if isinstance(value, (Function, Class)) else None
            if node is None or module_of(node) is not scope.module or id(node) in self.runs:
                continue
            text = scope.module.segment(node, whole=True)
            if not self.words.is_about(node) or (
                only_words and not (WORDS.search(text) and TRAINS.search(text))
            ):
                continue
            if isinstance(value, Function):
                calling.call(self, value, (), node, scope, uncalled=True)
            elif isinstance(value, Class):
                names = value.scope.names.values()
                methods = [each for each in names if isinstance(each, Function)]
                if not any(id(each.node) in self.runs for each in methods):
                    made = calling.call(self, value, (), node, scope, uncalled=True)
                    self.run_methods(made, node, scope, uncalled=True)

    def run_methods(self, made: Value, node: ast.AST, scope: Scope, uncalled: bool = False) -> None:
        """The methods of an object that its library calls, or that nobody here does: callers first."""
        if not isinstance(made, Instance) or made.cls is None:
            return
        names = [cls.scope.names.values() for cls in reversed(made.cls.lineage())]
        functions = [each for held in names for each in held if isinstance(each, Function)]
        methods = {each.name: each for each in functions if not each.name.startswith("__")}
        called = {c for name, m in methods.items() for c in self.words.calls_of(m.node) - {name}}
        for name in sorted(methods, key=lambda each: each in called):
            each = methods[name]
            if id(each.node) not in self.runs and self.words.is_about(each.node):
                calling.call(self, Bound(each, made), (), node, scope, uncalled=uncalled)

    # -- options

    def option(
        self, key: str, text: str, changed_by: str, place: Place, default: Any, *domain: Any
    ) -> Known:
        """The value of an option: what is assumed of it, or its default."""
        option = self.options.get(key)
        if option is None:
            option = self.options[key] = Option(key, text, changed_by, place, default)
        option.domain |= dict.fromkeys(domain)
        return Known(self.assumed.get(key, option.default), frozenset({option}))

    def truth(self, value: Value) -> tuple[bool | None, Options]:
        """Whether a value is true, None where that is not known, and on which options it depends."""
        match value:
            case Known():
                return bool(value.data), value.options
            case Items():
                return (bool(value.items) if value.whole or value.items else None), NONE
            case Dictionary():
                return (bool(value.items) if value.rest is None or value.items else None), NONE
            case Unknown() | Remainder() | Generator() | Method():
                return None, NONE
            case Library() if not is_known_library(value.qualified):
                return None, NONE
            case Made():
                return (True if value.qualified.rpartition(".")[2][:1].isupper() else None), NONE
            case Turn():
                return value.holds, NONE
        return True, NONE

    def holds(
        self,
        value: Value,
        test: ast.AST,
        yes: Sequence[ast.AST] = (),
        no: Sequence[ast.AST] = (),
        leaves: bool = False,
        scope: Scope | None = None,
    ) -> bool:
        """Which way a condition goes; ``leaves``: where it holds, the block ends."""
        true, options = self.truth(value)
        self._depends = NONE
        if isinstance(value, Turn):
            return value.holds
        if true is None:
            known = self.undecided(test, yes, no, leaves, scope)
            true, options = bool(known.data), known.options
        taken = yes if true else no
        matters = self.words.score([test]) or self.words.score(yes) or self.words.score(no)
        if options and (matters or (taken and _all_fail(taken))):
            for option in options:
                option.relevant = True
        self._depends = options
        return true

    _depends: Options = NONE
    """The options on which the last condition depends."""

    def _let_depend(
        self, node: ast.If | ast.For | ast.AsyncFor, options: Options, scope: Scope
    ) -> None:
        """What is assigned or returned in one way of a condition depends on it, whichever way is gone."""
        targets, returns = self.words.assigned_in(node)
        if returns and self.frames:
            self.frames[-1].options |= options
        for target in targets:
            if isinstance(target, ast.Name):
                table, key = scope.names, target.id
            else:
                held = self.value(target.value, scope)
                table = held.attributes if isinstance(held, Instance) else {}
                table = held.items if isinstance(held, Dictionary) else table
                key = target.attr if isinstance(target, ast.Attribute) else target.slice.value
            if isinstance(table.get(key), Known):
                table[key] = operations.depending(table[key], options)

    def undecided(
        self,
        test: ast.AST,
        yes: Sequence[ast.AST] = (),
        no: Sequence[ast.AST] = (),
        leaves: bool = False,
        scope: Scope | None = None,
    ) -> Known:
        """A condition that cannot be known goes the way that trains in mixed precision."""
        one, other = self.words.score(yes), self.words.score(no)
        if one == other:
            only = bool(no) and _all_fail(no) and (not leaves or _chooses(yes, no))
            on_gpu = bool(ACCELERATOR.search(text_of(test)))
            usual = only or (usually(test) and (on_gpu or not leaves))
        else:
            usual = one > other
        known = self._decided(test, usual, scope)
        for option in known.options:
            if one or other:
                option.chooses.add(not (one and other))
        return known

    def _decided(self, test: ast.AST, usual: bool, scope: Scope | None) -> Known:
        """A condition as options: of ``not``, ``and`` and ``or`` those of their parts that are not known."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            known = self._decided(test.operand, not usual, scope)
            return Known(not known.data, known.options)
        if isinstance(test, ast.BoolOp) and scope is not None:
            every = isinstance(test.op, ast.And)
            ways, options, first = [], NONE, True
            for each in test.values:
                true, more = self.truth(self.value(each, scope))
                if true is None:
                    alike = usual is every  # all parts go the same way, or one decides
                    known = self._decided(each, usual if alike or first else usually(each), scope)
                    true, more, first = bool(known.data), known.options, False
                ways.append(true)
                options |= more
            for option in options:
                option.turns = option.turns and ("", "", 0.0)
            return Known(all(ways) if every else any(ways), options)
        value = self.value(test, scope) if scope is not None else None
        if isinstance(value, Unknown) and isinstance(value.node, (ast.arg, ast.expr)):
            test = value.node  # what it was before it was given another name
        module, text = module_of(test), text_of(test) if not isinstance(test, ast.arg) else test.arg
        known = self.option(
            f"{module.file}: {text}", text, "", module.place(test), usual, True, False
        )
        for option in known.options:
            option.turns = _turns(test)
        return known

    # -- events

    def note(
        self,
        qualified: str,
        method: str,
        node: ast.AST,
        passed: Sequence[Passed],
        receiver: Value | None = None,
        overridden: frozenset[str] = frozenset(),
    ) -> Event:
        """Note a call, with what stands around it."""
        event = Event(qualified, method, node, tuple(passed), self.around(), receiver, overridden)
        self.events.append(event)
        return event

    def around(self) -> Around:
        """What stands around what is looked at now."""
        frames, loops = tuple(self.frames), tuple(self.loops)
        regions, turns = tuple(self.regions), tuple(self.turns)
        return Around(frames, loops, regions, turns, self.without_gradients > 0)

    @contextmanager
    def frame(self, frame: Frame) -> Iterator[None]:
        """Within one run of a function."""
        turns, without = len(self.turns), self.without_gradients
        self.frames.append(frame)
        self.depth += 1
        yield
        self.depth -= 1
        self.frames.pop()
        del self.turns[turns:]
        self.without_gradients = without

    # -- calls

    call, method, instance = calling.call, calling.method, calling.instance
    run_arguments = calling.run_arguments

    # -- statements

    def block(self, body: Sequence[ast.stmt], scope: Scope) -> str:
        """Follow statements until one leaves them; "" if none does."""
        turns = len(self.turns)
        for number, statement in enumerate(body):
            self.tick()
            if isinstance(statement, ast.If):
                signal = self._if(statement, scope, body[number + 1 :])
            else:
                method = getattr(self, f"visit_{type(statement).__name__}", None)
                leaves = LEAVES.get(type(statement), "")
                signal = leaves if method is None else method(statement, scope)
            if signal:
                break
        else:
            signal = ""
        del self.turns[turns:]
        return signal

    def tick(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Exhausted

    def _if(self, node: ast.If, scope: Scope, rest: Sequence[ast.stmt]) -> str:
        leaves = _leaves(node.body)
        otherwise = node.orelse or (rest if leaves else ())
        one, other = self.words.score(node.body), self.words.score(otherwise)
        self._wanted = (node.test if one != other else None), one > other
        value = self.condition(node.test, scope)
        holds = self.holds(value, node.test, node.body, otherwise, leaves, scope)
        options = self._depends
        sure = self.truth(value) == (True, NONE) and not isinstance(value, (Items, Dictionary))
        if _fails(node.body) and not sure:
            holds = False  # a training that is started as it should be, without faults in a list
        self._note_break(node, scope)
        turns = len(self.turns)
        if isinstance(value, Turn):
            leaving = leaves and not value.holds
            if holds or leaving:
                self.turns.append(value)
            if leaving:  # the rest of the block is for each n-th time
                self.block(node.orelse, scope)
                return ""
        signal = self.block(node.body if holds else node.orelse, scope)
        if options:
            self._let_depend(node, options, scope)
            if self.loops and any(
                isinstance(e, (ast.Break, ast.Continue)) for e in (*node.body, *node.orelse)
            ):
                self.loops[-1].options |= options
        del self.turns[turns:]
        return signal

    def condition(self, test: ast.AST, scope: Scope) -> Value:
        """The value of a condition; a remainder is true where it is not zero."""
        value = self.value(test, scope)
        return Turn(value.period, test, holds=False) if isinstance(value, Remainder) else value

    def _note_break(self, node: ast.If, scope: Scope) -> None:
        """``if i + 1 == 4: break``: the turns of a loop that ends by a count."""
        test = node.test
        if not self.loops or not isinstance(node.body[-1], ast.Break):
            return
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.Eq, ast.GtE)):
            return
        count, bound = self.value(test.left, scope), self.value(test.comparators[0], scope)
        if isinstance(count, Unknown) and count.counts:
            loop = self.loops[-1]
            first = getattr(loop.node, "body", [None])[0] is node or isinstance(
                test.left, ast.BinOp
            )
            if not first and isinstance(bound, Known) and isinstance(bound.data, int):
                bound = Known(bound.data + 1, bound.options)
            loop.turns = bound

    def visit_For(self, node: ast.For | ast.AsyncFor, scope: Scope) -> str:
        over = self.value(node.iter, scope)
        if isinstance(over, Generator):
            signals: list[str] = []
            with self._loop(node, over):
                over.run(lambda value: signals.append(self._turn(node, value, scope)))
            return next((s for s in signals if s in (RETURN, RAISE)), "")
        items = self.items_of(over)
        if items is not None and len(items) <= MOST_TURNS:
            if not items:
                return self.block(node.orelse, scope)
            fixed = Loop(node, Known(len(items)), text_of(node.iter))
            self.loops.append(fixed)
            signal = ""
            for item in items:
                signal = self._turn(node, item, scope)
                if signal in (BREAK, RETURN, RAISE):
                    break
            self.loops.pop()
            if fixed.options:
                self._let_depend(node, fixed.options, scope)
            return signal if signal in (RETURN, RAISE) else ""
        self._forget_counts(node, scope)
        with self._loop(node, over):
            signal = self._turn(node, self.item_of(over, node), scope)
        return signal if signal in (RETURN, RAISE) and not _may_end(node) else ""

    @contextmanager
    def _loop(self, node: Any, over: Value) -> Iterator[None]:
        self.loops.append(Loop(node, libraries.turns_of(self, over, node), text_of(node.iter)))
        yield
        self.loops.pop()

    def _turn(self, node: ast.For | ast.AsyncFor, item: Value, scope: Scope) -> str:
        self.assign(node.target, item, scope)
        return self.block(node.body, scope)

    def visit_While(self, node: ast.While, scope: Scope) -> str:
        value = self.value(node.test, scope)
        if not isinstance(value, Turn) and self.truth(value) == (False, NONE):
            return ""
        self._forget_counts(node, scope)
        value = self.value(node.test, scope)
        turns = None
        if isinstance(node.test, ast.Compare) and len(node.test.comparators) == 1:
            turns = self.value(node.test.comparators[0], scope)
        self.loops.append(Loop(node, turns, text_of(node.test)))
        signal = self.block(node.body, scope)
        self.loops.pop()
        return signal if signal in (RETURN, RAISE) and not _may_end(node) else ""

    def _forget_counts(self, loop: ast.AST, scope: Scope) -> None:
        """What a loop counts up is not what it was before the loop."""
        for target, counts in self.words.changed_in(loop):
            if isinstance(target, ast.Subscript):
                table, key = self.value(target.value, scope), self.value(target.slice, scope)
                items = table.items if isinstance(table, Dictionary) else {}
                if isinstance(key, Known) and key.data in items:
                    items[key.data] = Unknown(target, (str(key.data),), counts=True)
            elif isinstance(target, ast.Name):
                held = scope.find(target.id)
                if isinstance(held, Known) and isinstance(held.data, (int, float, str)):
                    scope.bind(target.id, Unknown(target, (target.id,), counts=counts))

    def visit_With(self, node: ast.With | ast.AsyncWith, scope: Scope, first: int = 0) -> str:
        if first == len(node.items):
            return self.block(node.body, scope)
        item = node.items[first]
        value = self.value(item.context_expr, scope)
        regions, without = len(self.regions), self.without_gradients
        signal = ""
        if isinstance(value, Generator):
            signals: list[str] = []

            def inside(given: Value) -> None:
                if item.optional_vars is not None:
                    self.assign(item.optional_vars, given, scope)
                frames = self.frames
                self.frames = frames[: _depth(frames, value)]
                signals.append(self.visit_With(node, scope, first + 1))
                self.frames = frames

            value.run(inside)
            signal = next(iter(signals), "")
        else:
            given = self.enter(value, item.context_expr, scope)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, given, scope)
            signal = self.visit_With(node, scope, first + 1)
            if isinstance(value, Instance):
                calling.method(self, value, "__exit__", (), item.context_expr, scope)
        del self.regions[regions:]
        self.without_gradients = without
        return signal

    def enter(self, value: Value, node: ast.AST, scope: Scope) -> Value:
        """What ``with value as ...`` gives; a region is open from here on."""
        if isinstance(value, Instance):
            given = calling.method(self, value, "__enter__", (), node, scope)
            if value.made is not None:
                self._open(value.made)
            return value if given is None else given
        if isinstance(value, (Made, Unknown)):
            self._open(value)
        return value

    def _open(self, value: Value) -> None:
        made = value if isinstance(value, Made) else getattr(value, "holds", None)
        if not isinstance(made, Made):
            return
        if made.qualified.endswith(("no_grad", "inference_mode")):
            self.without_gradients += 1
        elif not made.qualified.endswith("set_grad_enabled"):
            made.event.entered.append(self.around())
            self.regions.append(made.event)

    def visit_Try(self, node: Any, scope: Scope) -> str:
        signal = self.block(node.body, scope)
        if signal == RAISE and node.handlers:
            handler = node.handlers[0]
            if handler.name:
                scope.bind(handler.name, Unknown(handler))
            signal = self.block(handler.body, scope)
        elif not signal:
            signal = self.block(node.orelse, scope)
        return self.block(node.finalbody, scope) or signal

    def visit_Return(self, node: ast.Return, scope: Scope) -> str:
        value = self.value(node.value, scope) if node.value else Known(None)
        self.returned = operations.depending(
            value, self.frames[-1].options if self.frames else NONE
        )
        return RETURN

    def visit_Assign(self, node: ast.Assign, scope: Scope) -> str:
        value = self.value(node.value, scope)
        at_the_top = not self.frames[1:] and module_of(node) is self.finder.script
        name = node.targets[0]
        if at_the_top and isinstance(node.value, ast.Constant) and isinstance(name, ast.Name):
            value = self.switchable(name.id, value, node)
        for target in node.targets:
            self.assign(target, value, scope)
        return ""

    def switchable(self, name: str, value: Value, node: ast.AST) -> Value:
        """A switch of mixed precision that is off, ``fp16 = False``: who runs the program may set it."""
        if not (isinstance(value, Known) and value.data is False and SWITCH.search(name)):
            return value
        module = module_of(node)
        edit = f"an edit of {module.file}"
        return self.option(f"{module.file}: {name}", name, edit, module.place(node), False)

    def visit_AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> str:
        value = self.value(node.value, scope) if node.value is not None else None
        if scope.is_class and scope.owner is not None and isinstance(node.target, ast.Name):
            scope.owner.fields[node.target.id] = value
        if value is not None:
            self.assign(node.target, value, scope)
        return ""

    def visit_AugAssign(self, node: ast.AugAssign, scope: Scope) -> str:
        held, more = self.value(node.target, scope), self.value(node.value, scope)
        if isinstance(held, Items) and isinstance(node.op, ast.Add):
            added = self.items_of(more)
            held.items.extend((added or ())[: MOST_ITEMS - len(held.items)])
            held.whole = held.whole and added is not None
            return ""
        if isinstance(node.op, (ast.Div, ast.Mult)):
            self._divides(node.op, more, node)
        if isinstance(held, Unknown) and held.counts:
            return ""
        self.assign(node.target, self._binary(node.op, held, more, node), scope)
        return ""

    def assign(self, target: ast.AST, value: Value, scope: Scope) -> None:
        """Bind ``value`` to what stands on the left of an assignment."""
        match target:
            case ast.Name():
                scope.bind(target.id, value)
            case ast.Attribute():
                self.set_attribute(
                    self.value(target.value, scope), target.attr, value, target, scope
                )
            case ast.Subscript():
                held, key = self.value(target.value, scope), self.value(target.slice, scope)
                self.set_item(held, key, value, target)
            case ast.Starred():
                self.assign(target.value, value, scope)
            case ast.Tuple() | ast.List():
                items = self.items_of(value)
                starred = any(isinstance(each, ast.Starred) for each in target.elts)
                if items is None or len(items) != len(target.elts) or starred:
                    given = items if items is not None and not starred else []
                    rest = target.elts[len(given) :]
                    items = [*given, *(Unknown(each, holds=held_by(value)) for each in rest)]
                for each, item in zip(target.elts, items, strict=False):
                    self.assign(each, item, scope)

    def set_attribute(
        self, held: Value, name: str, value: Value, node: ast.AST, scope: Scope | None = None
    ) -> None:
        """``held.name = value``."""
        match held:
            case Instance():
                setter = held.cls.find(f"{name}.setter") if held.cls is not None else None
                if setter is not None and scope is not None:
                    passed = (Passed(value, node),)
                    calling.call(self, Bound(setter, held), passed, node, scope)
                    return
                if held.made is not None:
                    self.note_set(held.made, name, value, node)
                held.attributes[name] = value
            case Made():
                self.note_set(held, name, value, node)
                held.attributes[name] = value
            case Dictionary():
                held.items[name] = value
            case Class():
                held.scope.names[name] = value
            case ModuleOf(scope=Scope() as inner):
                inner.names[name] = value
            case Unknown():
                self.note_set(held, name, value, node)
            case Library():
                self.note_set(Made(held.qualified, NOTHING), name, value, node)

    def note_set(self, held: Value, name: str, value: Value, node: ast.AST) -> None:
        """Setting an attribute of a library's object is a call with one argument."""
        if isinstance(held, Made) and held.event is not NOTHING and held.event.passed:
            inner = held.event.passed[0].value
            wraps = not is_known_library(held.qualified)
            if wraps and isinstance(inner, Made) and is_known(inner.qualified):
                held = inner  # a library that is unknown here wraps it
        qualified = f"{held.qualified}.{name}" if isinstance(held, Made) else ""
        passed = (Passed(value, node, ""),)
        self.note(qualified, f"={name}", node, passed, held)

    def set_item(self, held: Value, key: Value, value: Value, node: ast.AST) -> None:
        """``held[key] = value``."""
        if isinstance(held, Instance) and held.cls is not None:
            setter = held.cls.find("__setitem__")
            if setter is not None:
                passed = (Passed(key, node), Passed(value, node))
                calling.call(self, Bound(setter, held), passed, node, held.cls.scope)
                return
        if isinstance(held, Dictionary) and isinstance(key, Known):
            try:
                held.items[key.data] = value
            except TypeError:
                return
        elif isinstance(held, Dictionary):
            held.rest = held.rest or Unknown(node)
        elif isinstance(held, Items) and isinstance(key, Known) and isinstance(key.data, int):
            if -len(held.items) <= key.data < len(held.items):
                held.items[key.data] = value
        elif isinstance(held, (Made, Library, Method)):
            self.note_set(Made(qualified_of(held), NOTHING), f"[{_shown(key)}]", value, node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> str:
        function: Value = self.function(node, scope)
        for decorator in reversed(node.decorator_list):
            function = calling.decorated(self, function, decorator, scope)
        scope.bind(node.name, function)
        if isinstance(function, Function) and function.kind == "setter":
            scope.bind(f"{node.name}.setter", function)
        return ""

    def function(self, node: Any, scope: Scope) -> Function:
        """A function with the defaults of its parameters."""
        arguments, defaults = node.args, {}
        positional = [*arguments.posonlyargs, *arguments.args]
        for each, default in zip(reversed(positional), reversed(arguments.defaults), strict=False):
            defaults[each.arg] = self.value(default, scope)
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if default is not None:
                defaults[each.arg] = self.value(default, scope)
        return Function(node, scope, defaults, scope.owner if scope.is_class else None)

    def visit_ClassDef(self, node: ast.ClassDef, scope: Scope) -> str:
        bases = tuple(self.value(base, scope) for base in node.bases)
        inner = Scope(scope.module, scope, is_class=True)
        cls = inner.owner = Class(node, inner, bases)
        cls.is_dataclass = any(isinstance(b, Class) and b.is_dataclass for b in bases)
        for each in reversed(cls.lineage()[1:]):
            cls.fields |= each.fields if each.is_dataclass else {}
        with self.frame(Frame(node.name, node)):
            self.block(node.body, inner)
        value: Value = cls
        for decorator in reversed(node.decorator_list):
            value = calling.decorated(self, value, decorator, scope)
        scope.bind(node.name, value)
        return ""

    def visit_Import(self, node: ast.Import, scope: Scope) -> str:
        for alias in node.names:
            whole = self.imported(alias.name, 0, scope.module)
            if alias.asname:
                scope.bind(alias.asname, whole)
            else:
                first = alias.name.partition(".")[0]
                scope.bind(first, self.imported(first, 0, scope.module))
        return ""

    def imported(self, name: str, level: int, importer: Module) -> Value:
        """What an import of a dotted name gives."""
        found = self.finder.find(name, level, importer)
        if isinstance(found, Module) and (id(found) in self.scopes or self.depth < DEEPEST):
            return ModuleOf(self.module(found), name, found)
        if isinstance(found, Path):
            return ModuleOf(None, name, importer, level)
        return Library("." * level + name)

    def visit_ImportFrom(self, node: ast.ImportFrom, scope: Scope) -> str:
        prefix = node.module or ""
        parent = self.imported(prefix, node.level, scope.module)
        for alias in node.names:
            if alias.name == "*":
                self._import_all(parent, scope)
            else:
                scope.bind(
                    alias.asname or alias.name, self._from(parent, prefix, alias.name, node, scope)
                )
        return ""

    def _import_all(self, parent: Value, scope: Scope) -> None:
        if isinstance(parent, ModuleOf) and parent.scope is not None:
            for name, value in parent.scope.names.items():
                if not name.startswith("_"):
                    scope.bind(name, value)
            scope.root.stars += parent.scope.stars
        elif isinstance(parent, Library):
            scope.root.stars.append(parent.qualified)

    def _from(
        self, parent: Value, prefix: str, name: str, node: ast.ImportFrom, scope: Scope
    ) -> Value:
        if node.level == 0 and is_known(f"{prefix}.{name}"):
            return Library(f"{prefix}.{name}")  # whose own repository this may be
        if isinstance(parent, ModuleOf):
            if parent.scope is not None and name in parent.scope.names:
                return parent.scope.names[name]
            below = self.finder.find(f"{prefix}.{name}".strip("."), node.level, scope.module)
            if isinstance(below, Module):
                return ModuleOf(self.module(below), name, below)
            if parent.scope is not None:
                for star in parent.scope.stars:
                    return Library(f"{star}.{name}")
            return Library(f"{'.' * node.level}{prefix}.{name}")
        below = self.finder.find(f"{prefix}.{name}".strip("."), node.level, scope.module)
        if isinstance(below, Module):
            return ModuleOf(self.module(below), name, below)
        return Library(f"{parent.qualified}.{name}" if isinstance(parent, Library) else name)

    def visit_Expr(self, node: ast.Expr, scope: Scope) -> str:
        value = self.value(node.value, scope)
        return RAISE if isinstance(value, Library) and value.qualified == "an exit" else ""

    def visit_Global(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> str:
        scope.outer |= set(node.names)
        return ""

    def visit_Delete(self, node: ast.Delete, scope: Scope) -> str:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                held, key = self.value(target.value, scope), self.value(target.slice, scope)
                if isinstance(held, Dictionary) and isinstance(key, Known):
                    held.items.pop(key.data, None)
        return ""

    def visit_Match(self, node: ast.Match, scope: Scope) -> str:
        subject = self.value(node.subject, scope)
        for case in node.cases:
            pattern = case.pattern
            each = pattern.patterns if isinstance(pattern, ast.MatchOr) else [pattern]
            values = [self.value(p.value, scope) for p in each if isinstance(p, ast.MatchValue)]
            tests = [self._compare(ast.Eq(), subject, v, node.subject) for v in values]
            known = next((t for t in tests if self.truth(t)[0]), [*tests, Unknown(pattern)][0])
            is_rest = isinstance(pattern, ast.MatchAs) and not (pattern.pattern or case.guard)
            if is_rest or self.holds(known, pattern, case.body):
                return self.block(case.body, scope)
        return ""

    # -- expressions

    def value(self, node: ast.AST, scope: Scope) -> Value:
        """What an expression stands for."""
        self.tick()
        method = getattr(self, f"visit_{type(node).__name__}", None)
        return Unknown(node) if method is None else method(node, scope)

    def visit_Constant(self, node: ast.Constant, scope: Scope) -> Value:
        return Known(node.value)

    def visit_Name(self, node: ast.Name, scope: Scope) -> Value:
        found = scope.find(node.id)
        if found is not None:
            if node.id in self.words.counted_globals and isinstance(found, Known):
                return Unknown(node, (node.id,), counts=True)
            return found
        if node.id in built_in.BUILT_IN:
            return Library(f"builtins.{node.id}")
        for star in scope.root.stars:
            return Library(f"{star}.{node.id}")
        return Unknown(node, (node.id,))

    def visit_Attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        return self.attribute(self.value(node.value, scope), node.attr, node, scope)

    def attribute(self, held: Value, name: str, node: ast.AST, scope: Scope) -> Value:
        """``held.name``."""
        match held:
            case Library():
                return libraries.attribute(self, held, name, node)
            case Instance():
                return self._of_instance(held, name, node, scope)
            case Class():
                found = held.find(name)
                if found is not None:
                    if isinstance(found, Function) and found.kind == "classmethod":
                        return Bound(found, held)
                    return found
                if name == "__name__":
                    return Known(held.name)
                if name == "__dict__":
                    return Dictionary(dict(held.scope.names.items()))
                base = next(iter(held.libraries()), "")
                return Library(f"{base}.{name}") if base else Unknown(node, (name,))
            case Dictionary():
                if name in held.items:
                    return self._counts(held.items[name], name, node)
                own = held.cls.find(name) if held.cls is not None else None
                if isinstance(own, Function):
                    return Bound(own, held.cls if own.kind == "classmethod" else held)
                if name in built_in.OF_DICTIONARIES or held.rest is None:
                    return Method(held, name, node)
                return self.looked_up(Unknown(node, (name,)))
            case Made():
                if name in held.attributes:
                    return held.attributes[name]
                cls = held.attributes.get("__class__")
                method = cls.find(name) if isinstance(cls, Class) else None
                if isinstance(method, Function):
                    return Bound(method, held)
                return libraries.made_attribute(self, held, name, node)
            case ModuleOf():
                return self._of_module(held, name)
            case Super():
                return self._of_super(held, name, node)
            case Known() if isinstance(held.data, str) and name == "parent":
                return Known(os.path.dirname(held.data) or ".", held.options)
            case Known(data=None):
                return Unknown(node, (name,))  # on some way that was not taken it is an object
            case Known() | Items() | Model():
                if isinstance(held, Known) and name in ("value", "name") and held.data is not None:
                    return held
                return Method(held, name, node)
            case Unknown():
                made = held.holds
                if isinstance(made, Instance) and (
                    name in made.attributes or (made.cls is not None and made.cls.find(name))
                ):
                    return self._of_instance(made, name, node, scope)
                path = (*held.path, name) if held.path else (name,)
                return self.looked_up(Unknown(node, path, holds=held.holds))
        return Unknown(node, (name,))

    def looked_up(self, unknown: Unknown) -> Value:
        """What the configuration that was passed has under the names of an unknown value.

        A file that was passed beats every default in the script.
        """
        if self.config is None or len(unknown.path) < 2 or unknown.path[0] in ("self", "np", "os"):
            return unknown
        if not CONFIGURES.search(".".join(unknown.path[:-1])):
            return unknown
        found = self.config.find([str(each) for each in unknown.path])
        if found is None:
            return unknown
        self.config_used = True
        return operations.of_table(found[0], found[1])

    def _of_instance(self, held: Instance, name: str, node: ast.AST, scope: Scope) -> Value:
        if name in held.attributes:
            return self._counts(held.attributes[name], name, node)
        if name == "__dict__":
            return Dictionary(held.attributes)
        if name == "__class__":
            return held.cls or Unknown(node)
        found = held.cls.find(name) if held.cls is not None else None
        if isinstance(found, Function):
            if found.kind == "property":
                return calling.call(self, Bound(found, held), (), node, scope)
            if found.kind == "staticmethod":
                return found
            return Bound(found, held.cls if found.kind == "classmethod" else held)
        if found is not None:
            return found
        finds = held.cls.find("__getattr__") if held.cls is not None else None
        if isinstance(finds, Function) and not name.startswith("__"):
            passed = (Passed(Known(name), node),)
            return calling.call(self, Bound(finds, held), passed, node, scope)
        if held.made is not None:
            given = {each.name: each.value for each in held.made.event.passed}
            if name in given:
                return given[name]
            return Method(held, name, node)
        base = next(iter(held.cls.libraries()), "") if held.cls is not None else ""
        if base:
            return Method(held, name, node)
        return Unknown(node, ("self", name))

    def _counts(self, value: Value, name: str, node: ast.AST) -> Value:
        """An attribute that is counted up somewhere is not what it was at first."""
        is_number = isinstance(value, Known) and type(value.data) in (int, float)
        is_counted = is_number and name in self.words.counted
        return Unknown(node, ("self", name), counts=True) if is_counted else value

    def _of_module(self, held: ModuleOf, name: str) -> Value:
        if held.scope is not None and name in held.scope.names:
            return held.scope.names[name]
        if name == "__dict__" and held.scope is not None:
            return Dictionary(held.scope.names)
        if held.scope is not None:
            below = self.finder.find(name, 1, held.scope.module)
        else:
            below = self.finder.find(f"{held.name}.{name}", held.level, held.importer)
        if isinstance(below, Module):
            return ModuleOf(self.module(below), name, below)
        if isinstance(below, Path):
            return ModuleOf(None, f"{held.name}.{name}", held.importer, held.level)
        if held.scope is not None:
            for star in held.scope.stars:
                return Library(f"{star}.{name}")
        return Library(f"{held.name}.{name}")

    def _of_super(self, held: Super, name: str, node: ast.AST) -> Value:
        of = held.receiver
        if name == "__dict__" and isinstance(of, Instance):
            return Dictionary(of.attributes)
        cls = of.cls if isinstance(of, (Instance, Dictionary)) else of
        found = cls.find(name, held.cls) if isinstance(cls, Class) else None
        if isinstance(found, Function):
            return Bound(found, of)
        return Method(held, name, node)

    def visit_Subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        held = self.value(node.value, scope)
        if isinstance(node.slice, ast.Slice):
            return self._sliced(held, node, scope)
        return self.item(held, self.value(node.slice, scope), node, scope)

    def item(self, held: Value, key: Value, node: ast.AST, scope: Scope) -> Value:
        """``held[key]``."""
        if isinstance(held, Instance):
            made = calling.method(self, held, "__getitem__", (Passed(key, node),), node, scope)
            return Unknown(node) if made is None else made
        if isinstance(key, Known):
            try:
                if isinstance(held, Dictionary):
                    if key.data in held.items:
                        for option in key.options:
                            option.domain |= dict.fromkeys(held.items)
                        return operations.depending(held.items[key.data], key.options)
                    path = (*getattr(held.rest, "path", ()), str(key.data))
                    unknown = Unknown(node, path)
                    return unknown if held.rest is None else self.looked_up(unknown)
                if isinstance(held, Items) and (held.whole or 0 <= key.data < len(held.items)):
                    found: Value = held.items[key.data]
                    return found
                if isinstance(held, Known):
                    return Known(held.data[key.data], held.options | key.options)
            except (TypeError, IndexError, KeyError):
                return Unknown(node)
            if isinstance(held, Library) and not is_known_library(held.qualified):
                return self.looked_up(Unknown(node, (*held.qualified.split("."), str(key.data))))
            if isinstance(held, (Class, Library, Made)):
                return libraries.subscripted(held, key, node)
            path = (*held.path, str(key.data)) if isinstance(held, Unknown) else ()
            return self.looked_up(Unknown(node, path, holds=held_by(held)))
        if isinstance(held, (Items, Dictionary)):
            items = held.items if isinstance(held, Items) else list(held.items.values())
            if len(items) == 1:
                return items[0]
        return Unknown(node, holds=held_by(held))

    def _sliced(self, held: Value, node: ast.Subscript, scope: Scope) -> Value:
        assert isinstance(node.slice, ast.Slice)
        parts = (node.slice.lower, node.slice.upper, node.slice.step)
        bounds = [Known(None) if each is None else self.value(each, scope) for each in parts]
        plain = [b.data for b in bounds if isinstance(b, Known)]
        try:
            if len(plain) == 3 and isinstance(held, Items) and held.kind != "set":
                return Items(held.kind, held.items[slice(*plain)], held.whole)
            if len(plain) == 3 and isinstance(held, Known):
                return Known(held.data[slice(*plain)], held.options)
        except (TypeError, ValueError):
            pass
        return Unknown(node, holds=held_by(held))

    def visit_Call(self, node: ast.Call, scope: Scope) -> Value:
        return calling.evaluated(self, node, scope)

    def visit_List(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Value:
        items: list[Value] = []
        whole = True
        for each in node.elts:
            if isinstance(each, ast.Starred):
                inside = self.items_of(self.value(each.value, scope))
                whole = whole and inside is not None
                items += inside or []
            else:
                items.append(self.value(each, scope))
        return Items(type(node).__name__.lower(), items, whole)

    def visit_Dict(self, node: ast.Dict, scope: Scope) -> Value:
        made = Dictionary({})
        for key, each in zip(node.keys, node.values, strict=True):
            value = self.value(each, scope)
            if key is None:
                operations.update(made, value, each)
                continue
            name = self.value(key, scope)
            if isinstance(name, Known):
                made.items[name.data] = value
            elif isinstance(name, Library):
                made.items[name.qualified] = value
            else:
                made.rest = made.rest or Unknown(key)
        return made

    def visit_IfExp(self, node: ast.IfExp, scope: Scope) -> Value:
        value = self.value(node.test, scope)
        holds = self.holds(value, node.test, [node.body], [node.orelse], scope=scope)
        options = self._depends
        return operations.depending(self.value(node.body if holds else node.orelse, scope), options)

    def visit_BoolOp(self, node: ast.BoolOp, scope: Scope) -> Value:
        is_and = isinstance(node.op, ast.And)
        options: Options = NONE
        turn: Turn | None = None
        unknown = False
        value: Value = Known(is_and)
        for each in node.values:
            value = self.condition(each, scope)
            if isinstance(value, Turn):
                turn = turn or value
                continue
            true, more = self.truth(value)
            options |= more
            if true is None:
                unknown = True
            elif true is not is_and:
                if turn is not None and not is_and and not more:
                    return turn
                return operations.depending(value, options)
        if turn is not None:
            return turn
        if unknown:
            of_truth = all(isinstance(each, _OF_TRUTH) for each in node.values)
            test, wanted = self._wanted
            usual = wanted if test is node else usually(node)
            return self._decided(node, usual, scope) if of_truth else Unknown(node)
        return operations.depending(value, options)

    def visit_UnaryOp(self, node: ast.UnaryOp, scope: Scope) -> Value:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            if isinstance(value, Turn):
                return Turn(value.period, value.node, not value.holds)
            if isinstance(value, Remainder):
                return Turn(value.period, node)
            true, options = self.truth(value)
            return Unknown(node) if true is None else Known(not true, options)
        if isinstance(value, Known):
            try:
                return Known(_UNARY[type(node.op)](value.data), value.options, value.place)
            except TypeError:
                pass
        return Unknown(node)

    def visit_BinOp(self, node: ast.BinOp, scope: Scope) -> Value:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        if isinstance(node.op, (ast.Div, ast.Mult)):
            self._divides(node.op, right, node)
            if isinstance(node.op, ast.Mult):
                self._divides(node.op, left, node)
        return self._binary(node.op, left, right, node)

    def _divides(self, op: ast.operator, right: Value, node: ast.AST) -> None:
        """Note a division of what is not known: of the loss by the number of micro-batches, say."""
        if isinstance(op, ast.Mult) and isinstance(right, Known) and isinstance(right.data, float):
            if 0 < right.data < 1:
                right = Known(1 / right.data, right.options)
                self.divisors.append((right, node))
        elif isinstance(op, ast.Div):
            self.divisors.append((right, node))

    def _binary(self, op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
        if isinstance(op, ast.Mod) and not isinstance(left, Known):
            return Remainder(right, node)
        if isinstance(left, Known) and isinstance(right, Known):
            try:
                if isinstance(op, (ast.Pow, ast.LShift)) and _is_large(left.data, right.data):
                    return Unknown(node)
                if isinstance(op, ast.Mult) and _is_large_product(left.data, right.data):
                    return Unknown(node)
                if isinstance(op, ast.Div) and isinstance(left.data, str):  # of paths
                    data: Any = os.path.join(left.data, str(right.data))
                else:
                    data = _BINARY[type(op)](left.data, right.data)
                if is_large(data):
                    return Unknown(node)
                return Known(data, left.options | right.options, left.place or right.place)
            except (TypeError, ValueError, ArithmeticError, KeyError, MemoryError):
                return Unknown(node)
        joins = isinstance(op, (ast.Add, ast.BitOr))
        if joins and isinstance(left, Items) and isinstance(right, Items):
            if len(left.items) + len(right.items) > MOST_ITEMS:
                return Unknown(node)
            return Items(left.kind, [*left.items, *right.items], left.whole and right.whole)
        times = right.data if isinstance(right, Known) and isinstance(op, ast.Mult) else None
        if (
            isinstance(left, Items)
            and isinstance(times, int)
            and len(left.items) * times < MOST_TURNS
        ):
            return Items(left.kind, left.items * times, left.whole)
        counts = any(isinstance(each, Unknown) and each.counts for each in (left, right))
        return Unknown(node, counts=counts, holds=held_by(left) or held_by(right))

    def visit_Compare(self, node: ast.Compare, scope: Scope) -> Value:
        left = self.value(node.left, scope)
        result: Value = Known(True)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.value(comparator, scope)
            result = self._compare(op, left, right, node)
            if self.truth(result)[0] is False:
                return result
            left = right
        return result

    def _compare(self, op: ast.cmpop, left: Value, right: Value, node: ast.AST) -> Value:
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Remainder) and isinstance(op, (ast.Eq, ast.NotEq, ast.Is, ast.GtE)):
                return Turn(one.period, node, not isinstance(op, ast.NotEq))
            if isinstance(one, Remainder):
                return Turn(one.period, node, isinstance(op, ast.Lt))
            if isinstance(one, Unknown) and one.counts and one is left:
                if isinstance(op, (ast.Eq, ast.GtE)) and self._comes_round(one, node):
                    return Turn(other, node)
                if isinstance(op, (ast.Lt, ast.NotEq)) and self._comes_round(one, node):
                    return Turn(other, node, holds=False)
        if isinstance(left, Known) and isinstance(right, Known):
            for option in left.options:
                if isinstance(op, (ast.Eq, ast.NotEq)) and _is_hashable(right.data):
                    option.domain[right.data] = None
            try:
                holds = _COMPARISONS[type(op)](left.data, right.data)
            except (TypeError, KeyError, ValueError):
                return Unknown(node)
            return Known(bool(holds), left.options | right.options)
        if isinstance(op, (ast.In, ast.NotIn)):
            return built_in.contained(left, right, node, isinstance(op, ast.In))
        if isinstance(op, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
            same = operations.is_same(left, right)
            if same is False and any(_is_device(each) for each in (left, right)):
                statement = next(p for p in (node, *parents(node)) if isinstance(p, ast.stmt))
                if self.words.score([statement]):
                    self.note("torch.device.__eq__", "__eq__", node, ())
            if same is not None:
                return Known(same is isinstance(op, (ast.Is, ast.Eq)))
        return Unknown(node)

    def _comes_round(self, count: Unknown, node: ast.AST) -> bool:
        """Whether a count is set back where it is compared."""
        names = {count.path[-1]} if count.path else set()
        if isinstance(count.node, ast.BinOp):  # i - last >= n, where last = i is set
            names |= {*map(last_name, ast.walk(count.node))} - {""}
        resets = self.words.resets(node)
        return any(name in names and (not of or of in names) for name, of in resets)

    def visit_JoinedStr(self, node: ast.JoinedStr, scope: Scope) -> Value:
        parts: list[str] = []
        options: Options = NONE
        for each in node.values:
            value = self.value(each.value if isinstance(each, ast.FormattedValue) else each, scope)
            if not isinstance(value, Known):
                return Unknown(node)
            parts.append(str(value.data))
            options |= value.options
        text = "".join(parts)
        return Unknown(node) if is_large(text) else Known(text, options)

    def visit_ListComp(self, node: Any, scope: Scope) -> Value:
        inner = Scope(scope.module, scope)
        is_table = isinstance(node, ast.DictComp)
        made: Any = Dictionary({}) if is_table else Items("list", [])
        made = Items("set", []) if isinstance(node, ast.SetComp) else made
        self._comprehend(node, 0, inner, made)
        return made  # type: ignore[no-any-return]

    def _comprehend(self, node: Any, depth: int, scope: Scope, made: Any) -> None:
        if depth == len(node.generators):
            if isinstance(node, ast.DictComp):
                self.set_item(
                    made, self.value(node.key, scope), self.value(node.value, scope), node
                )
            else:
                made.items.append(self.value(node.elt, scope))
            return
        each = node.generators[depth]
        over = self.value(each.iter, scope)
        items = self.items_of(over)
        if items is None or len(items) > MOST_TURNS:
            if isinstance(made, Items):
                made.whole = False
            else:
                made.rest = Unknown(node)
            items = [self.item_of(over, each.iter)]
            self.loops.append(Loop(each, libraries.turns_of(self, over, each), text_of(each.iter)))
        else:
            self.loops.append(Loop(each, Known(len(items)), text_of(each.iter)))
        for item in items:
            self.assign(each.target, item, scope)
            if all(self.holds(self.value(test, scope), test) for test in each.ifs):
                self._comprehend(node, depth + 1, scope, made)
        self.loops.pop()

    def visit_Yield(self, node: ast.Yield | ast.YieldFrom, scope: Scope) -> Value:
        value = self.value(node.value, scope) if node.value is not None else Known(None)
        if self.yields:
            given = self.yields.pop()  # what takes it may be a generator, too
            given(value)
            self.yields.append(given)
        return Unknown(node)

    def visit_NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> Value:
        value = self.value(node.value, scope)
        scope.bind(node.target.id, value)
        return value

    def visit_Await(
        self, node: ast.Await | ast.Starred | ast.FormattedValue, scope: Scope
    ) -> Value:
        return self.value(node.value, scope)

    visit_AsyncFunctionDef, visit_AsyncFor = visit_FunctionDef, visit_For
    visit_AsyncWith = visit_With
    visit_Nonlocal, visit_Lambda = visit_Global, function
    visit_Tuple = visit_Set = visit_List
    visit_FormattedValue = visit_Starred = visit_Await
    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp
    visit_YieldFrom = visit_Yield

    # -- items

    def items_of(self, value: Value) -> list[Value] | None:
        """The items of what is gone through, if all of them are known."""
        match value:
            case Items() if value.whole:
                return list(value.items)
            case Dictionary() if value.rest is None:
                return [Known(key) for key in value.items]
            case Known() if isinstance(value.data, (str, tuple)):
                data = value.data[:MOST_TURNS]
                return [Known(each, value.options) for each in data]
            case Generator():
                found: list[Value] = []
                value.run(found.append)
                return found
        return None

    def item_of(self, over: Value, node: ast.AST) -> Value:
        """One item of what is not known one by one."""
        if isinstance(over, Items) and over.items:
            return over.items[0]
        if isinstance(over, Model) and over.kind == "range":
            return Unknown(node, ("index",), counts=True)
        if isinstance(over, Model) and over.kind in ("enumerate", "zip"):
            inner = [
                self.item_of(each, node)
                for each in over.state["over"][: None if over.kind == "zip" else 1]
            ]
            index = [Unknown(node, ("index",), counts=True)] if over.kind == "enumerate" else []
            return Items("tuple", [*index, *inner])
        counts = isinstance(over, Unknown) and over.counts
        return Unknown(node, ("item",), counts=counts, holds=held_by(over))


NOTHING: Any = None
STEPS = frozenset(
    {"backward", "step", "minimize", "apply_gradients", "fit", "train", "train_batch"}
)
CONFIGURES = re.compile(r"cfg|conf|args|opt|param|setting|flag|amp|train|global", re.I)


_LOSS, _COUNT = re.compile(r"loss|cost", re.I), re.compile(r"step|iter|epoch|index|\bi\b", re.I)
_OF_TRUTH = (ast.Compare, ast.BoolOp, ast.UnaryOp)
"""Expressions that are true or false, and nothing else."""
_SIGNS: Mapping[type, str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


def _turns(test: ast.AST) -> tuple[str, str, float] | None:
    """The bound of a condition on the loss, or on how far the training is; None of another condition."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return ("", "", 0.0) if _turns(test.operand) else None
        case ast.BoolOp():
            return ("", "", 0.0) if any(map(_turns, test.values)) else None
        case ast.Compare(ops=[op], comparators=[ast.Constant(int() | float() as bound)]) if (
            type(op) in _SIGNS
        ):
            text = text_of(test.left)
            what = "loss" if _LOSS.search(text) else "step" if _COUNT.search(text) else ""
            what = "epoch" if "epoch" in text.lower() and what == "step" else what
            return (what, _SIGNS[type(op)], float(bound)) if what else None
    return None


def usually(test: ast.AST) -> bool:
    """Which way a condition goes in a training on a GPU, as far as its words tell."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return not usually(test.operand)
        case ast.BoolOp():
            ways = [usually(each) for each in test.values]
            return all(ways) if isinstance(test.op, ast.And) else any(ways)
        case ast.Compare(ops=[op]):
            if isinstance(op, ast.Is):
                return False
            return isinstance(op, (ast.IsNot, ast.NotEq, ast.Gt, ast.GtE, ast.In))
    return not _SELDOM.search(text_of(test))


_SELDOM = re.compile(
    r"tpu|eval|test|debug|resume|isnan|isinf|profil|dry|export|valid|overflow|cpu|save", re.I
)


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether a block ends what it stands in."""
    last = body[-1] if body else None
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return text_of(last.value.func) in ("sys.exit", "exit", "quit", "os._exit")
    return isinstance(last, (ast.Return, ast.Raise, ast.Continue, ast.Break))


def _fails(body: Sequence[ast.stmt]) -> bool:
    """Whether a block ends the program."""
    return _leaves(body) and isinstance(body[-1], (ast.Raise, ast.Expr))


def _chooses(yes: Sequence[ast.AST], no: Sequence[ast.AST]) -> bool:
    """``if a: return A``, ``if b: return B``, ``raise``: one of several that are known by name."""
    return isinstance(yes[-1], ast.Return) and all(isinstance(n, (ast.If, ast.Raise)) for n in no)


def _is_device(value: Value) -> bool:
    return isinstance(value, Made) and value.qualified == "torch.device"


def _all_fail(orelse: Sequence[ast.AST]) -> bool:
    """Whether what stands under ``else`` ends the program, whatever is asked there."""
    first = orelse[0]
    if isinstance(first, ast.If) and len(orelse) == 1:
        return bool(first.orelse) and _all_fail(first.orelse)
    return isinstance(orelse[-1], ast.Raise)


def _may_end(loop: ast.AST) -> bool:
    """Whether a loop has a condition around what leaves it, so that what follows is reached, too."""
    return any(
        isinstance(each, (ast.Return, ast.Raise))
        and any(
            isinstance(p, (ast.If, ast.Try))
            for p in takewhile(lambda p: p is not loop, parents(each))
        )
        for each in ast.walk(loop)
    )


def _depth(frames: Sequence[Frame], generator: Generator) -> int:
    """How many frames stand around the run of a generator."""
    depths = [n for n, frame in enumerate(frames) if frame.node is generator.function.node]
    return depths[-1] if depths else len(frames)


def _shown(key: Value) -> str:
    return str(key.data) if isinstance(key, Known) else "?"


def _is_hashable(data: Any) -> bool:
    return data is None or isinstance(data, (str, int, float))


def is_large(data: Any) -> bool:
    """Whether a plain value is larger than anything that a program is set up with."""
    if isinstance(data, int):
        return data.bit_length() > 2000
    return isinstance(data, (str, bytes, tuple)) and len(data) > MOST_ITEMS


def _is_large(base: Any, power: Any) -> bool:
    return not isinstance(power, (int, float)) or abs(power) > 200 or abs(base) > 1e6


def _is_large_product(left: Any, right: Any) -> bool:
    texts = [each for each in (left, right) if isinstance(each, (str, bytes, tuple))]
    return bool(texts) and any(isinstance(n, int) and n > 1000 for n in (left, right))


# fmt: off
_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.BitOr: operator.or_, ast.BitAnd: operator.and_,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}
_UNARY: Mapping[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
}
_COMPARISONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.eq, ast.IsNot: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}
# fmt: on
