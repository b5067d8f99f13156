"""A configuration with its base files, and with what a command line overrides of it.

    PaddleDetection  _BASE_: later files override earlier ones      ppdet/core/workspace.py
    PaddleSeg        _base_: earlier files override later ones;
                     _inherited_: False leaves a base's table out   paddleseg/cvlibs/config.py

Both are relative to the file, and whatever the file itself has overrides its bases.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ampbridge.errors import ArgumentError, SourceError, nearest
from ampbridge_port.configs import document
from ampbridge_port.modules import is_within, root_of
from ampbridge_port.reading import Finding, Place
from ampbridge_port.table import Entry, Table, literal

MOST_BASES = 64
DETECTION, SEG, INHERITED = "_BASE_", "_base_", "_inherited_"

Load = Callable[[str], str]
"""The text of a file, by its path."""


def read(file: str, load: Load) -> Table:
    """The table of a file, merged with those of its base files.

    Raises:
        SourceError: for a file that cannot be read, is its own base, or has too many.
    """
    root = root_of(Path(os.path.abspath(file)).parent)
    return _Bases(load, os.path.realpath(root)).table(file, ())


class _Bases:
    def __init__(self, load: Load, root: str) -> None:
        self._load, self._root = load, root
        self._tables: dict[str, Table] = {}

    def table(self, file: str, above: tuple[str, ...]) -> Table:
        """The table of ``file``, which is a base of ``above``, each of the one before."""
        real = os.path.realpath(file)
        if real in above:
            chain = " -> ".join(
                os.path.relpath(each) for each in (*above[above.index(real) :], real)
            )
            msg = f"{file} is a base of itself: {chain}.\n"
            raise SourceError(msg + f"Hint: leave it out of {DETECTION} or {SEG}.")
        if real not in self._tables:
            if len(self._tables) >= MOST_BASES:
                msg = f"{above[0]} has more than {MOST_BASES} base files.\n"
                raise SourceError(msg + "Hint: pass the merged file, which the trainer prints.")
            root = document.read(self._load(file), file)
            self._tables[real] = root
            self._tables[real] = self._merged(root, file, (*above, real))
        return self._tables[real]

    def _merged(self, root: Table, file: str, above: tuple[str, ...]) -> Table:
        key = next((key for key in (DETECTION, SEG) if key in root.entries), None)
        if key is None:
            return root
        named = root.get_raw(key)
        names = [named] if isinstance(named, str) else named
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            place = root.place_of(key)
            msg = f"{place}: {key} is {place.text}, and should be one file or several.\n"
            raise SourceError(msg + f"Hint: {key}: ['base.yml']")
        bases = [self._base(name, file, root.place_of(key), above) for name in names]
        own = Table({k: v for k, v in root.entries.items() if k != key}, root.place)
        for base in reversed(bases) if key == DETECTION else bases:
            own = merged(own, base)
        return own

    def _base(self, name: str, file: str, place: Place, above: tuple[str, ...]) -> Table:
        path = os.path.normpath(os.path.join(os.path.dirname(file), os.path.expanduser(name)))
        if not is_within(path, self._root):
            msg = f"{place}: {file} has the base {name!r}, which is outside of {self._root}.\n"
            raise SourceError(msg + "Hint: pass the merged file, which the trainer prints.")
        try:
            return self.table(path, above)
        except SourceError as error:
            if Path(path).exists():
                raise
            msg = f"{place}: {file} has the base {name!r}, which is not there: {path}.\n"
            raise SourceError(
                msg + "Hint: pass the file where it stands in its repository."
            ) from error


def merged(own: Table, base: Table) -> Table:
    """``base``, overridden by ``own``; of tables under one key, both."""
    if own.get_raw(INHERITED) is False:
        return Table({k: v for k, v in own.entries.items() if k != INHERITED}, own.place)
    entries = dict(base.entries)
    for key, entry in own.entries.items():
        below = base.get_raw(key)
        if isinstance(entry.value, Table):
            table = merged(entry.value, below if isinstance(below, Table) else _nothing(entry))
            entry = replace(entry, value=table)
        entries[key] = entry
    return Table(entries, own.place)


def _nothing(entry: Entry) -> Table:
    return Table({}, entry.place)


# -- overrides


def overridden(root: Table, overrides: Sequence[str]) -> Table:
    """A configuration with ``KEY=VALUE`` of a command line: ``AMP.use_amp=True``, ``a.0.b=1``.

    Raises:
        ArgumentError: for one that is not of this form, or goes into what is no table.
    """
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not all(key.strip().split(".")):
            msg = f"Cannot read the override {text!r}.\n"
            raise ArgumentError(msg + "Hint: -o AMP.use_amp=True")
        place = Place("-o", 1, 0, text)
        root = _with(root, key.strip().split("."), literal(value.strip()), place, text)
    return root


def added(root: Table, overrides: Sequence[str]) -> tuple[Finding, ...]:
    """A note for each key that a command line sets and no file has: it may be misspelt."""
    findings = []
    for text in overrides:
        keys = text.partition("=")[0].strip().split(".")
        table: Any = root
        while keys and isinstance(table, Table) and keys[0] in table.entries:
            table = table.entries[keys.pop(0)].value
        if keys and isinstance(table, Table):
            close = nearest(keys[0], list(table.entries), 1)
            message = f"No file has the key {keys[0]!r}, which this adds."
            hint = f"did you mean {close[0]!r}?" if close else ""
            findings.append(Finding("note", Place("-o", 1, 0, text), message, hint))
    return tuple(findings)


def _with(table: Table, keys: Sequence[str], value: Any, place: Place, text: str) -> Table:
    first, *others = keys
    if not others:
        made = Entry(Table.of(value, place) if isinstance(value, Mapping) else value, place)
    else:
        held = table.entries.get(first, Entry(Table({}, place), place))
        made = replace(held, value=_into(held.value, others, value, place, text))
    return replace(table, entries={**table.entries, first: made})


def _into(held: Any, keys: Sequence[str], value: Any, place: Place, text: str) -> Any:
    if held is None:
        held = Table({}, place)
    if isinstance(held, Table):
        return _with(held, keys, value, place, text)
    if isinstance(held, list) and keys[0].isdecimal() and int(keys[0]) < len(held):
        index = int(keys[0])
        made = value if len(keys) == 1 else _into(held[index], keys[1:], value, place, text)
        return [*held[:index], made, *held[index + 1 :]]
    msg = f"The override {text!r} goes into {held!r}, which has no key {keys[0]!r}.\n"
    raise ArgumentError(msg + "Hint: -o AMP.use_amp=True")
