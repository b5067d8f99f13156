"""The text of a JSON or YAML file as a table, with the place of each value.

Nothing is constructed but text, numbers, truth values and lists of them; a value with a tag of its
own (``!python/object``, ``!PiecewiseDecay``) is text. Aliases share what they stand for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ampbridge.errors import SourceError
from ampbridge_port.reading import Place
from ampbridge_port.table import Entry, Table

if TYPE_CHECKING:
    import yaml

LARGEST = 2**18  # characters: ten times the longest that anybody writes; PyYAML is slow
DEEPEST = 100  # tables in tables

_TOO_DEEP_FOR_LIBYAML = "exceeded maximum nesting depth"
"""What some of its versions say at 1,000 brackets on a line, which they read ahead of the first event."""

_SHOWN = 80  # characters of a value, in messages


def read(text: str, file: str) -> Table:
    """The table that a file holds.

    Raises:
        SourceError: for what is no JSON and no YAML, holds no table, or is too large or too deep.
        AmpBridgeError: if PyYAML is not installed.
    """
    if len(text) > LARGEST:
        raise _refused(file, f"has {len(text)} characters; at most {LARGEST} are read")
    if file.lower().endswith(".json"):
        return _json_table(text, file)
    return _yaml_table(text, file)


def _refused(file: str, why: str) -> SourceError:
    return SourceError(
        f"{file} {why}.\n"
        "Hint: pass a DeepSpeed JSON file, or a YAML file of Accelerate, Lightning or a Paddle project."
    )


# -- JSON


def _json_table(text: str, file: str) -> Table:
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _refused(file, f"is no JSON: {error or 'nested too deeply'}") from error
    if not isinstance(value, dict):
        raise _refused(file, f"holds no table but {_shortened(json.dumps(value))}")
    return _JsonPlaces(text, file).table(value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """DeepSpeed refuses a key that stands twice; so do we."""
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(
            f"{next(k for k in keys if keys.count(k) > 1)!r} appears twice in one table"
        )
    return table


class _JsonPlaces:
    """Walks through the tokens of valid JSON along with the values that it was parsed to."""

    _TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')

    def __init__(self, text: str, file: str) -> None:
        self._text, self._file = text, file
        self._tokens = self._TOKEN.finditer(text)
        self._line, self._newline, self._counted = 1, -1, 0  # the last newline up to there

    def table(self, values: Mapping[str, Any]) -> Table:
        return self._table(values, next(self._tokens), 1)

    def _table(self, values: Mapping[str, Any], brace: re.Match[str], depth: int) -> Table:
        if depth > DEEPEST:
            raise _refused(self._file, f"has more than {DEEPEST} tables in each other")
        place = self._place(brace.start(), brace.group())
        entries = {}
        for key, value in values.items():
            self._skip(2)  # the key and its colon
            entries[key] = self._entry(value, depth)
            self._skip(1)  # a comma, or the end of the table
        if not values:
            self._skip(1)
        return Table(entries, place)

    def _entry(self, value: Any, depth: int) -> Entry:
        token = next(self._tokens)
        if isinstance(value, dict):
            table = self._table(value, token, depth + 1)
            return Entry(table, table.place)
        place = self._place(token.start(), _shortened(json.dumps(value)))
        if isinstance(value, list):
            self._skip_list()
        return Entry(value, place)

    def _skip(self, count: int) -> None:
        for _ in range(count):
            next(self._tokens)

    def _skip_list(self) -> None:
        open_ = 1
        while open_:
            token = next(self._tokens).group()
            open_ += (token in ("[", "{")) - (token in ("]", "}"))

    def _place(self, start: int, shown: str) -> Place:
        self._line += self._text.count("\n", self._counted, start)
        self._newline = max(self._newline, self._text.rfind("\n", self._counted, start))
        self._counted = start
        return Place(self._file, self._line, start - self._newline - 1, shown)


# -- YAML


def _yaml_table(text: str, file: str) -> Table:
    yaml = _yaml()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_depth(yaml.parse(text, Loader=loader), file)
        node = yaml.compose(text, Loader=loader)
    except SourceError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if _TOO_DEEP_FOR_LIBYAML in str(error):
            raise _too_deep(file) from error
        raise _refused(file, f"is no YAML: {_one_line(error)}") from error
    if not isinstance(node, yaml.MappingNode):
        raise _refused(file, "holds no table")
    return _YamlTables(text, file).table(node)


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        msg = "Reading YAML needs PyYAML, which is not installed.\n"
        raise SourceError(msg + "Hint: pip install 'ampbridge[port]'") from error
    return yaml


def _check_depth(events: Iterator[Any], file: str) -> None:
    """Before anything recurses: PyYAML's composer does, in C, without a limit."""
    depth = 0
    for event in events:
        name = type(event).__name__
        depth += name.endswith("StartEvent") - name.endswith("EndEvent")
        if depth > DEEPEST:
            raise _too_deep(file)


def _too_deep(file: str) -> SourceError:
    return _refused(file, f"has more than {DEEPEST} tables and lists in each other")


class _YamlTables:
    """Tables and values from PyYAML's nodes; a node that several aliases stand for is read once."""

    def __init__(self, text: str, file: str) -> None:
        self._text, self._file = text, file
        self._read: dict[int, Entry | None] = {}

    def table(self, node: yaml.MappingNode) -> Table:
        table = self._entry(node).value
        assert isinstance(table, Table)
        return table

    def _entry(self, node: yaml.Node) -> Entry:
        if id(node) not in self._read:
            self._read[id(node)] = None
            self._read[id(node)] = Entry(self._value(node), self._place(node))
        entry = self._read[id(node)]
        if entry is None:
            raise _refused(self._file, f"has an alias that refers to itself, line {_line(node)}")
        return entry

    def _value(self, node: Any) -> Any:
        if node.id == "mapping":
            return Table(self._entries(node), self._place(node))
        if node.id == "sequence":
            return [self._entry(child).value for child in node.value]
        return _scalar(node)

    def _entries(self, node: yaml.MappingNode) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                merged = {**self._merged(value), **merged}
            elif key.id == "scalar":
                entries[key.value] = self._entry(value)
        return {**merged, **entries}

    def _merged(self, node: Any) -> dict[str, Entry]:
        """What ``<<: *base`` brings in; of several, the first that has a key."""
        tables = [self._entry(child).value for child in node.value] if node.id == "sequence" else []
        tables = tables or [self._entry(node).value]
        merged: dict[str, Entry] = {}
        for table in reversed(tables):
            merged.update(table.entries if isinstance(table, Table) else {})
        return merged

    def _place(self, node: yaml.Node) -> Place:
        shown = self._text[node.start_mark.index : node.end_mark.index].strip()
        return Place(self._file, _line(node), node.start_mark.column, _shortened(shown))


def _scalar(node: yaml.ScalarNode) -> Any:
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind == "null":
        return None
    if kind == "bool":
        return node.value.lower() in ("yes", "true", "on")
    try:
        if kind == "int":
            return int(node.value.replace("_", ""), 0)
        if kind == "float":
            return float(node.value.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        pass  # base 60, or an octal number with a leading zero: none of our keys has them
    return node.value


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."
