"""What a configuration stands for: one recipe, or several where something else decides as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ampbridge_port.dialect import Draft
from ampbridge_port.table import Table


class Way(NamedTuple):
    """One way in which a file may be used: under which conditions, and what it then means."""

    conditions: tuple[str, ...]
    read: Callable[[Draft], None]


class Format(NamedTuple):
    """A kind of configuration file.

    Args:
        framework: as ``Reading.framework`` names it.
        recognises: whether a file is of this kind.
        ways: what it stands for.
    """

    framework: str
    recognises: Callable[[Table], bool]
    ways: Callable[[Table], Sequence[Way]]


def one_way(read: Callable[[Table, Draft], None]) -> Callable[[Table], Sequence[Way]]:
    """The ways of a file that means the same wherever it is used."""
    return lambda root: [Way((), lambda draft: read(root, draft))]


def has_any(table: Table, *keys: str) -> bool:
    """Whether a table has one of these keys at least."""
    return not table.entries.keys().isdisjoint(keys)
