"""Where names and attributes are bound while a file is followed, on both sides of a condition.

Cells are keyed by an owner (a frame, an object, a container) and a name. Changes are logged, so that
a branch can be taken back, and what two branches left be joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ampbridge_port.interpreter.decisions import Condition
from ampbridge_port.interpreter.values import Choice, Constant, Value

Key = tuple[int, Any]
Changes = dict[Key, "Value | None"]


class Memory:
    """The cells, and what has been changed since the last mark."""

    def __init__(self) -> None:
        self._cells: dict[Key, Value] = {}
        self._names: dict[int, dict[Any, None]] = {}
        self._owners: list[object] = []  # held, so that no id is given twice
        self._logs: list[Changes] = []

    def own(self, owner: object) -> None:
        """Keep ``owner`` alive: its id names its cells."""
        self._owners.append(owner)

    def get(self, owner: object, name: Any) -> Value | None:
        """What the cell holds, if anything."""
        return self._cells.get((id(owner), name))

    def set(self, owner: object, name: Any, value: Value) -> None:
        """Bind the cell."""
        self._put((id(owner), name), value)

    def at(self, key: Key) -> Value | None:
        """What the cell of a change holds now."""
        return self._cells.get(key)

    def names(self, owner: object) -> list[Any]:
        """The names bound under ``owner``, oldest first."""
        return list(self._names.get(id(owner), ()))

    def _put(self, key: Key, value: Value | None) -> None:
        for log in self._logs:
            log.setdefault(key, self._cells.get(key))
        owner, name = key
        if value is None:
            self._cells.pop(key, None)
            self._names.get(owner, {}).pop(name, None)
        else:
            self._cells[key] = value
            self._names.setdefault(owner, {})[name] = None

    @contextmanager
    def watched(self) -> Iterator[Changes]:
        """The cells changed inside, with what they held before."""
        log: Changes = {}
        self._logs.append(log)
        try:
            yield log
        finally:
            self._logs = [each for each in self._logs if each is not log]

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Changes inside are not taken back with those around: a module that is imported stays so."""
        logs, self._logs = self._logs, []
        try:
            yield
        finally:
            self._logs = logs

    def branch(self, run: Callable[[], None]) -> Changes:
        """What ``run`` changes, taken back: the cells with what it left in them."""
        with self.watched() as before:
            run()
        after: Changes = {key: self._cells.get(key) for key in before}
        self.restore(before)
        return after

    def restore(self, changes: Changes) -> None:
        """Put ``changes`` into the cells."""
        for key, value in changes.items():
            self._put(key, value)

    def join(self, condition: Condition, yes: Changes, no: Changes) -> None:
        """The cells after one of two branches, by ``condition``."""
        for key in [*yes, *(key for key in no if key not in yes)]:
            old = self._cells.get(key)
            self._put(key, joined(condition, yes.get(key, old), no.get(key, old)))


def joined(condition: Condition, yes: Value | None, no: Value | None) -> Value | None:
    """One of two values by ``condition``; a name bound on one side alone is what it is bound to."""
    if yes is None or no is None or yes is no:
        return yes if no is None else no
    if isinstance(yes, Constant) and isinstance(no, Constant) and _equal(yes, no):
        return yes
    return Choice(condition, yes, no)


def _equal(left: Constant, right: Constant) -> bool:
    alike = type(left.value) is type(right.value) and left.options == right.options
    return alike and bool(left.value == right.value)
