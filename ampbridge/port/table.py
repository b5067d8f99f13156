"""A table of a configuration: values by key, and where each stands; read by dialects as calls are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ampbridge.port.dialect import Argument, Call, NotKnown
from ampbridge.port.reading import Place


@dataclass(frozen=True)
class Entry:
    """A value under a key: a plain one, a list of plain ones, or a ``Table``."""

    value: Any
    place: Place


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

    def get(self, key: str, default: Any = None) -> Any:
        """The value under ``key``.

        Raises:
            NotKnown: if it stands for what is filled in elsewhere: ``auto``, ``${name}``.
        """
        if key not in self.entries:
            return default
        entry = self.entries[key]
        if is_filled_in(entry.value):
            raise NotKnown(entry.place)
        return entry.value

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
