"""A table of a configuration: values by key, and where each stands; read by dialects as calls are."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ampbridge_port.dialect import Argument, Call, NotKnown
from ampbridge_port.reading import Place


@dataclass(frozen=True)
class Entry:
    """A value under a key: a plain one, a list of plain ones, or a ``Table``.

    ``argument``: in Python, what it comes from, which may not be known.
    """

    value: Any
    place: Place
    argument: Argument | None = None


@dataclass(frozen=True)
class Table:
    """``entries`` by key; ``place`` is where the table itself stands."""

    entries: Mapping[str, Entry]
    place: Place

    @classmethod
    def of(cls, values: Mapping[Any, Any], place: Place) -> Table:
        """A plain dict as a table, all of it at one place."""
        return cls(
            {
                str(key): Entry(
                    cls.of(value, place) if isinstance(value, Mapping) else value, place
                )
                for key, value in values.items()
            },
            place,
        )

    @classmethod
    def of_argument(cls, argument: Argument) -> Table:
        """A dictionary of a Python file; empty, where there is no telling what it holds."""
        return cls(
            {str(key): _entry(part) for key, part in (argument.parts() or {}).items()},
            argument.place,
        )

    def get(self, key: str, default: Any = None) -> Any:
        """The value under ``key``.

        Raises:
            NotKnown: if it cannot be known: ``auto``, ``${name}``, an expression.
        """
        if key not in self.entries:
            return default
        entry = self.entries[key]
        value = entry.value if entry.argument is None else entry.argument.evaluate()
        if is_filled_in(value):
            raise NotKnown(entry.place)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Whether ``key`` is true; text counts as what it says.

        Raises:
            NotKnown: as ``get``.
        """
        argument = self.entries[key].argument if key in self.entries else None
        if argument is not None and argument.truth is not None:
            return argument.truth()
        return str(self.get(key, default)).lower() == "true"

    def get_raw(self, key: str) -> Any:
        """What is written under ``key``; None, if nothing is."""
        return self.entries[key].value if key in self.entries else None

    def table(self, key: str) -> Table:
        """The table under ``key``; an empty one, if there is none."""
        entry = self.entries.get(key)
        return entry.value if entry and isinstance(entry.value, Table) else Table({}, self.place)

    def place_of(self, key: str) -> Place:
        """Where the value of ``key`` stands; the table, if there is none."""
        return self.entries[key].place if key in self.entries else self.place

    def with_value(self, key: str, value: Any) -> Table:
        """A copy with another value at the place of ``key``."""
        entry = Entry(value, self.place_of(key))
        return replace(self, entries={**self.entries, key: entry})

    def call(self, name: str, keys: Iterable[str] = (), **parameters: str) -> Call:
        """The call of ``name`` that a program makes of this table.

        Args:
            keys: those that it passes on under their own names.
            parameters: parameter name = key. What the table lacks is not passed.
        """
        passed = {**{key: key for key in keys}, **parameters}
        return Call(
            name,
            self.place,
            {
                parameter: Argument(self.place_of(key), partial(self.get, key))
                for parameter, key in passed.items()
                if key in self.entries
            },
        )


def _entry(argument: Argument) -> Entry:
    parts = argument.parts()
    if parts is not None and all(isinstance(key, str) for key in parts):
        return Entry(Table.of_argument(argument), argument.place)
    return Entry(None, argument.place, argument)


def is_filled_in(value: Any) -> bool:
    """Whether a value stands for another that the file does not hold."""
    return isinstance(value, str) and (value == "auto" or "${" in value)


def passing(call: Call, **values: Any) -> Call:
    """``call`` with arguments that the caller passes besides what is written: they stand at the call."""
    constants = {
        name: Argument(replace(call.place, text=repr(value)), partial(_constant, value))
        for name, value in values.items()
    }
    return replace(call, arguments={**constants, **call.arguments})


def _constant(value: Any) -> Any:
    return value


def literal(text: str) -> Any:
    """A value as the projects read it: a literal of Python, or of YAML, or text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() in ("null", "none", "~"):
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
