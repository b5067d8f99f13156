"""The state of a run that is followed: memory, what holds, which functions are active."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Protocol

from ampbridge_port.interpreter.decisions import (
    And,
    Atom,
    Condition,
    Cycle,
    Not,
    Truth,
    negation,
    truth,
)
from ampbridge_port.interpreter.evaluate import condition_of
from ampbridge_port.interpreter.memory import Changes, Memory, joined
from ampbridge_port.interpreter.values import (
    Argument,
    Attributes,
    Choice,
    Constant,
    Container,
    Entry,
    Event,
    Frame,
    Imported,
    Instance,
    Items,
    Library,
    Loop,
    Made,
    Run,
    Table,
    Unknown,
    Value,
)
from ampbridge_port.reading import LONGEST_EXCERPT
from ampbridge_port.source import Source

if TYPE_CHECKING:
    import libcst as cst

    from ampbridge_port.modules import Modules

MOST_LEAVES = 16
"""A value that depends on more conditions than this is taken as unknown."""
LARGEST_CONDITION = 24
"""A condition of more atoms than this is taken as one by itself."""
MOST_STATEMENTS = 100_000
"""As many are followed, at most, and each line of the file ``MOST_TURNS`` times besides."""
MOST_TURNS = 8

# What is counted up somewhere: a number of steps or batches is not known at any time.
COUNTED = re.compile(r"(?<![\w.])([\w.]+)\s*(?:[-+]=\s*\d|=\s*\1\s*[-+]\s*\d)")


class Vocabulary(Protocol):
    """The calls that dialects know."""

    def knows(self, qualified: str) -> bool:
        """Whether a qualified name is one of theirs."""

    def may_set(self, qualified: str, key: Any) -> bool:
        """Whether ``qualified[key] = ...`` may be a setting of theirs."""

    def names_of(self, module: str) -> list[str]:
        """The names that ``from module import *`` brings of them."""


class Exhausted(Exception):
    """A file that would take too long to follow."""


class Following:
    """Conditions and branches, and the events met on the way."""

    def __init__(self, source: Source, known: Vocabulary, modules: Modules | None = None) -> None:
        self.source, self.known, self.modules = source, known, modules
        self.memory = Memory()
        self.module = Frame(None)
        self.frame = self.module
        self.events: list[Event] = []
        self.guards: list[Condition] = []
        self._facts = _Facts(())
        self.stack: list[Run] = []
        self.regions: list[Event] = []
        self.loops: list[Loop] = []
        self.divisors: list[Value] = []
        """What something unknown is divided by: of a loss, the number of micro-batches."""
        self.turns: set[str] = set()
        """Names that loops count by: ``i`` of ``for i, batch in enumerate(loader)``."""
        self.without_gradients = 0
        self.counters = counted(source.text)
        """Names that are counted up somewhere, in any module."""
        self.module.counters.update(self.counters)
        self.rebound: set[tuple[int, str]] = set()
        """Names of modules, by their frames, that are bound anew once the module has been followed."""
        self._statements = 0
        self._most_statements = MOST_STATEMENTS + MOST_TURNS * source.text.count("\n")

    def count_statement(self) -> None:
        """One more; a bound on the time that a file may take."""
        self._statements += 1
        if self._statements > self._most_statements:
            raise Exhausted

    # -- conditions

    @contextmanager
    def guarded(self, condition: Condition) -> Iterator[None]:
        """Inside, ``condition`` holds."""
        before = len(self.guards)
        self.guards.append(condition)
        try:
            yield
        finally:
            del self.guards[before:]

    def known_truth(self, condition: Condition) -> bool | None:
        """Whether ``condition`` holds here, by what is known to."""
        if isinstance(condition, Truth):
            return condition.value
        if self._facts.guards != self.guards:
            self._facts = _Facts(self.guards, self._facts)
        return truth(condition, self._facts.holds)

    def resolved(self, value: Value) -> Value:
        """A choice whose condition is known here as what was chosen, an import as what it brings."""
        while isinstance(value, (Choice, Imported)):
            if isinstance(value, Imported):
                value = self.imported(value)
                continue
            holds = self.known_truth(value.condition)
            if holds is None:
                return value
            value = value.yes if holds else value.no
        return value

    def imported(self, value: Imported) -> Value:
        """What an import of a module of the folder brings."""
        raise NotImplementedError

    def star(self, frame: Frame, name: str) -> Value | None:
        """What a module has of another, all whose names it imports."""
        raise NotImplementedError

    def choice(self, condition: Condition, yes: Value, no: Value, node: cst.CSTNode) -> Value:
        """Either by ``condition``; unknown, if that makes it too many."""
        made = joined(condition, yes, no)
        assert made is not None
        return self.unknown(node) if leaves(made) > MOST_LEAVES else made

    def over(self, value: Value, use: Callable[[Value], Value], node: cst.CSTNode) -> Value:
        """``use`` of each value that ``value`` may be, where it is."""
        value = self.resolved(value)
        if not isinstance(value, Choice):
            return use(value)
        yes, no = value.yes, value.no
        return self.either_way(
            value.condition,
            lambda: self.over(yes, use, node),
            lambda: self.over(no, use, node),
            node,
        )

    def either_way(
        self,
        condition: Condition,
        yes: Callable[[], Value],
        no: Callable[[], Value],
        node: cst.CSTNode,
    ) -> Value:
        """What one or the other gives, each followed where its condition holds."""
        known = self.known_truth(condition)
        if known is not None:
            return yes() if known else no()
        made: list[Value] = []
        left = self._branch(condition, lambda: made.append(yes()))
        right = self._branch(negation(condition), lambda: made.append(no()))
        self.memory.join(condition, left, right)
        return self.choice(condition, made[0], made[1], node)

    def _branch(self, condition: Condition, run: Callable[[], None]) -> Changes:
        with self.guarded(condition):
            return self.memory.branch(run)

    def holds(self, value: Value, node: cst.CSTNode) -> Condition:
        """The condition under which ``value``, which ``node`` stands for, is true."""
        condition = condition_of(value, self.memory, self.text)
        return condition if condition.size <= LARGEST_CONDITION else Atom(self.text(node))

    # -- values

    def text(self, node: cst.CSTNode) -> str:
        """The code of ``node``."""
        return self.source.text_of(node)

    def unknown(self, node: cst.CSTNode, *parts: Value) -> Unknown:
        """What ``node`` stands for, made of ``parts``."""
        held = [made for part in parts for made in self.made_in(part)]
        return Unknown(partial(self.text, node), node, holds=tuple(dict.fromkeys(held)))

    def made_in(self, value: Value) -> list[Made]:
        """The objects of known calls in ``value``."""
        if isinstance(value, Made):
            return [value]
        if isinstance(value, Choice):
            return self.made_in(value.yes) + self.made_in(value.no)
        if isinstance(value, Unknown):
            return list(value.holds)
        if isinstance(value, Items):
            return [made for item in value.items for made in self.made_in(item)]
        return []

    def content(self, value: Value) -> Value:
        """What is in a container, now."""
        if isinstance(value, Container):
            return self.memory.get(value, "content") or self.unknown(value.node)
        if isinstance(value, Attributes):
            names = self.memory.names(value.of)
            held = {name: self.memory.get(value.of, name) for name in names}
            return Table({name: each for name, each in held.items() if each is not None})
        return value

    def may_change(self, owner: Value | Frame, node: cst.CSTNode) -> None:
        """``node`` may bind any name of ``owner``: what these hold are defaults from here on."""
        changed_by = f"`{shorten(self.text(node), LONGEST_EXCERPT, placeholder=' ...')}`"
        prefix = "self." if isinstance(owner, Instance) and owner.cls is not None else ""
        for name in self.memory.names(owner):
            held = self.memory.get(owner, name)
            if isinstance(held, Constant) and not held.options:
                default = Argument(f"{prefix}{name}", node, changed_by, held.value)
                self.memory.set(owner, name, default)
            elif isinstance(owner, Container):
                self.memory.set(owner, name, self._perhaps_changed(held, node, changed_by))

    def _perhaps_changed(self, held: Value | None, node: cst.CSTNode, by: str) -> Value:
        """The content of a container that may be changed: its plain values are defaults."""
        if not isinstance(held, Table):
            return self.unknown(node)
        items = {
            key: Argument(str(key), node, by, each.value) if isinstance(each, Constant) else each
            for key, each in held.items.items()
        }
        return Table(items, held.rest)

    def container(
        self, node: cst.CSTNode, content: Value, *, by_attribute: bool = False
    ) -> Container:
        """A new list, set or dictionary."""
        made = Container(node, by_attribute)
        self.memory.own(made)
        self.memory.set(made, "content", content)
        return made

    def frozen(self, value: Value) -> Value:
        """``value`` as it is now: containers as their content."""
        if isinstance(value, Choice):
            return Choice(value.condition, self.frozen(value.yes), self.frozen(value.no))
        content = self.content(value)
        if isinstance(content, Choice):
            return self.frozen(content)
        if isinstance(content, Items):
            return Items(content.kind, tuple(self.frozen(item) for item in content.items))
        if isinstance(content, Table):
            frozen = {key: self.frozen(item) for key, item in content.items.items()}
            return Table(frozen, content.rest)
        return content

    # -- names

    def lookup(self, name: str, node: cst.CSTNode) -> Value:
        """What a name stands for here."""
        if name in self.frame.root.counters:
            return Unknown(name, node)
        frame: Frame | None = self.frame
        while frame is not None:
            found = self.memory.get(frame, name)
            if found is not None and (frame is self.frame or not frame.is_class):
                return self.resolved(found)
            frame = frame.parent
        module = self.frame.root.module
        if name == "__name__":
            return Constant("__main__" if module is None else module.name)
        if name in BUILTINS:
            return Library(f"builtins.{name}", node)
        found = self.star(self.frame.root, name)
        return Unknown(name, node) if found is None else self.resolved(found)

    def bind(self, name: str, value: Value) -> None:
        """Bind a name here, or where it was declared to be."""
        frame = self.frame
        if name in frame.outer_names:
            while frame.parent is not None and self.memory.get(frame.parent, name) is None:
                frame = frame.parent
            frame = frame.parent or frame
            if frame.module is not None:
                self.rebound.add((id(frame), name))
        self.memory.set(frame, name, value)

    # -- events

    def entry(self) -> Entry:
        """Where we are."""
        return Entry(
            tuple(self.stack), tuple(self.regions), tuple(self.loops), self.without_gradients > 0
        )


def counted(text: str) -> set[str]:
    """The names that a module counts up somewhere."""
    return {found.rpartition(".")[2] for found in COUNTED.findall(text)}


BUILTINS = frozenset(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)


class _Facts:
    """What holds where all of ``guards`` do: formulas are large, so each fact is looked up by its text.

    ``before``: the facts of other guards; if those are the first of ``guards``, theirs are taken over.
    """

    def __init__(self, guards: Sequence[Condition], before: _Facts | None = None) -> None:
        self.guards = list(guards)
        shared = 0
        self._known: dict[tuple[type, str], bool] = {}
        self._equal: dict[str, Any] = {}
        if before is not None and self.guards[: len(before.guards)] == before.guards:
            shared = len(before.guards)
            self._known, self._equal = dict(before._known), dict(before._equal)
        for guard in self.guards[shared:]:
            self._add(guard, True)

    def _add(self, condition: Condition, holds: bool) -> None:
        if isinstance(condition, Not):
            self._add(condition.of, not holds)
        elif isinstance(condition, And) and holds:
            self._add(condition.left, True)
            self._add(condition.right, True)
        elif isinstance(condition, (Atom, Cycle)):
            self._known.setdefault((type(condition), condition.text), holds)
            if holds and isinstance(condition, Atom) and condition.subject:
                self._equal.setdefault(condition.subject, condition.value)

    def holds(self, atom: Condition) -> bool | None:
        """Whether ``atom`` is so; None if that does not follow."""
        if not isinstance(atom, (Atom, Cycle)):
            return None
        known = self._known.get((type(atom), atom.text))
        if known is None and isinstance(atom, Atom) and atom.subject in self._equal:
            return False  # it equals another value
        return known


def leaves(value: Value) -> int:
    """How many values a value may be, by its conditions."""
    return leaves(value.yes) + leaves(value.no) if isinstance(value, Choice) else 1
