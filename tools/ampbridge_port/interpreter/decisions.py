"""Conditions that cannot be known, and reading once for each way they may go.

A reading asks ``Decisions`` where it depends on one. What has not been decided is taken to hold,
and the reading is done again for the other way: replayed, not resumed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

MOST = 128
"""As many readings of a file, at most: most conditions turn out to make no difference."""

T = TypeVar("T")

_BRACKETS = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")


class Condition:
    """A formula over what cannot be known. ``size``: of how many atoms, as it is written out."""

    size: int = 1


@dataclass(frozen=True)
class Truth(Condition):
    """What is known after all."""

    value: bool


@dataclass(frozen=True)
class Atom(Condition):
    """An expression of the file that is true or not. ``subject == value``, where it says that.

    ``choices``: all that ``subject`` may be, if that is known. ``node``: where it stands, if it compares.
    ``usual``: which way it goes by the default of ``option``, a text of the file, if it has one.
    """

    text: str
    subject: str = ""
    value: Any = None
    choices: tuple[Any, ...] = field(default=(), compare=False)
    node: Any = field(default=None, compare=False)
    usual: bool | None = field(default=None, compare=False)
    option: str = field(default="", compare=False)


@dataclass(frozen=True)
class Not(Condition):
    """The opposite."""

    of: Condition

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.of.size)


@dataclass(frozen=True)
class And(Condition):
    """Both."""

    left: Condition
    right: Condition

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.left.size + self.right.size)


@dataclass(frozen=True)
class Cycle(Condition):
    """True each ``period``-th time: ``(i + 1) % period == 0``. ``period`` is a value of the file.

    ``node``: where it stands, if it compares.
    """

    period: Any
    text: str
    node: Any = field(default=None, compare=False)


TRUE, FALSE = Truth(True), Truth(False)


def negation(condition: Condition) -> Condition:
    """What holds where ``condition`` does not."""
    if isinstance(condition, Truth):
        return Truth(not condition.value)
    return condition.of if isinstance(condition, Not) else Not(condition)


def both(left: Condition, right: Condition) -> Condition:
    """What holds where both do."""
    if FALSE in (left, right):
        return FALSE
    if TRUE in (left, right):
        return right if left == TRUE else left
    return left if left == right else And(left, right)


def either(left: Condition, right: Condition) -> Condition:
    """What holds where one does."""
    return negation(both(negation(left), negation(right)))


def cycle_of(condition: Condition) -> Cycle | None:
    """The first that a condition depends on."""
    if isinstance(condition, Cycle):
        return condition
    if isinstance(condition, Not):
        return cycle_of(condition.of)
    if isinstance(condition, And):
        return cycle_of(condition.left) or cycle_of(condition.right)
    return None


def atoms(condition: Condition) -> Iterator[Atom]:
    """The atoms of a formula, each once."""
    seen: set[int] = set()
    left = [condition]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Atom):
            yield each
        elif isinstance(each, Not):
            left.append(each.of)
        elif isinstance(each, And):
            left += (each.left, each.right)


Answer = Callable[[Condition], "bool | None"]


def truth(condition: Condition, answer: Answer) -> bool | None:
    """What ``condition`` is where ``answer`` says what its atoms are; None where that is not enough."""
    return _truth(condition, answer, {})


def _truth(condition: Condition, answer: Answer, known: dict[int, bool | None]) -> bool | None:
    """``truth``; formulas share their parts, so each part is asked once."""
    if id(condition) in known:
        return known[id(condition)]
    if isinstance(condition, Truth):
        result: bool | None = condition.value
    elif isinstance(condition, Not):
        of = _truth(condition.of, answer, known)
        result = None if of is None else not of
    elif isinstance(condition, And):
        left = _truth(condition.left, answer, known)
        right = False if left is False else _truth(condition.right, answer, known)
        result = False if right is False else True if left and right else None
    else:
        result = answer(condition)
    known[id(condition)] = result
    return result


class Decision(NamedTuple):
    """An atom, and which way it goes."""

    atom: Atom
    holds: bool

    @property
    def is_usual(self) -> bool:
        """Whether it goes as a default of the file has it, or none says."""
        return self.atom.usual in (None, self.holds)

    def __str__(self) -> str:
        if self.holds:
            return self.atom.text
        if self.atom.subject and self.atom.text == f"{self.atom.subject} == {self.atom.value!r}":
            return f"{self.atom.subject} != {self.atom.value!r}"
        outside, brackets = _BRACKETS.subn("", self.atom.text)
        while brackets:
            outside, brackets = _BRACKETS.subn("", outside)
        return f"not ({self.atom.text})" if " " in outside else f"not {self.atom.text}"


class Decisions:
    """Which way the conditions go, this time."""

    def __init__(self, given: Sequence[Decision] = ()) -> None:
        self._given = {each.atom.text: each.holds for each in given}
        self.made: list[Decision] = []

    def decide(self, condition: Condition) -> bool:
        """Whether ``condition`` holds; decides atoms that have not been."""
        known = truth(condition, self._decide_atom)
        return bool(known)

    def decided(self, condition: Condition) -> bool | None:
        """Whether ``condition`` holds, by what has been decided; None if that is not enough."""
        return truth(condition, self._known)

    def value_of(self, subject: str) -> tuple[Any] | None:
        """What has been decided that ``subject`` equals, or what alone is left."""
        about = [each for each in self.made if each.atom.subject == subject]
        for atom, holds in about:
            if holds:
                return (atom.value,)
        excluded = [atom.value for atom, _ in about]
        left = [each for each in (about[0].atom.choices if about else ()) if each not in excluded]
        return (left[0],) if len(left) == 1 else None

    def departs_from(self, option: str) -> bool:
        """Whether it has been decided that ``option`` has not its default."""
        return any(each.atom.option == option and not each.is_usual for each in self.made)

    def is_about(self, option: str) -> bool:
        """Whether anything of ``option`` has been decided."""
        return any(each.atom.option == option for each in self.made)

    def _has_default(self, option: str) -> bool:
        return any(
            each.atom.option == option and each.atom.subject and each.atom.usual and each.holds
            for each in self.made
        )

    def _known(self, atom: Condition) -> bool | None:
        if not isinstance(atom, Atom):
            return None
        if atom.option and self._has_default(atom.option):
            return atom.usual
        for made in self.made:
            if made.atom.text == atom.text:
                return made.holds
        if atom.subject:
            equal = self.value_of(atom.subject)
            if equal is not None:
                return bool(equal[0] == atom.value)
        return None

    def _decide_atom(self, atom: Condition) -> bool:
        if not isinstance(atom, Atom):  # each n-th time: it does happen
            return True
        known = self._known(atom)
        if known is None:
            known = self._given.get(atom.text, True)
            self.made.append(Decision(atom, known))
        return known


def described(decisions: Sequence[Decision]) -> dict[str, bool]:
    """Conditions in the file's words, and whether they are ``usual``.

    What a variable equals says all that it does not equal.
    """
    made = Decisions()
    made.made.extend(decisions)
    texts: dict[str, bool] = {}
    for each in decisions:
        subject = each.atom.subject
        equal = made.value_of(subject) if subject else None
        text = f"{subject} == {equal[0]!r}" if equal else str(each)
        texts[text] = texts.get(text, True) and each.is_usual
    return texts


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What a reading gave, under which decisions."""

    decisions: tuple[Decision, ...]
    result: T


def explore(
    read: Callable[[Decisions], T], same: Callable[[T, T], bool], most: int = MOST
) -> tuple[list[Outcome[T]], bool]:
    """``read`` under every way the conditions may go that it asks for, up to ``most`` of them.

    Decisions that make no difference (``same``) are left out. Second is whether that was all.
    """
    queue: list[tuple[Decision, ...]] = [()]
    outcomes: list[Outcome[T]] = []
    while queue and len(outcomes) < most:
        given = queue.pop()
        decisions = Decisions(given)
        outcomes.append(Outcome((), read(decisions)))
        made = tuple(decisions.made)
        outcomes[-1] = Outcome(made, outcomes[-1].result)
        queue.extend(
            (*made[:n], Decision(made[n].atom, False)) for n in range(len(given), len(made))
        )
    return _merged(outcomes, 0, same), not queue


def _merged(
    outcomes: list[Outcome[T]], depth: int, same: Callable[[T, T], bool]
) -> list[Outcome[T]]:
    """The outcomes that share their first ``depth`` decisions, from there on without idle ones."""
    if len(outcomes) == 1:
        only = outcomes[0]
        return [Outcome(only.decisions[depth:], only.result)]
    ways = {
        holds: _merged([o for o in outcomes if o.decisions[depth].holds is holds], depth + 1, same)
        for holds in (True, False)
        if any(o.decisions[depth].holds is holds for o in outcomes)
    }
    if len(ways) == 2 and _alike(ways[True], ways[False], same):
        return ways[True]
    atom = outcomes[0].decisions[depth].atom
    return [
        Outcome((Decision(atom, holds), *each.decisions), each.result)
        for holds, way in ways.items()
        for each in way
    ]


def _alike(left: list[Outcome[T]], right: list[Outcome[T]], same: Callable[[T, T], bool]) -> bool:
    return len(left) == len(right) and all(
        a.decisions == b.decisions and same(a.result, b.result)
        for a, b in zip(left, right, strict=True)
    )
