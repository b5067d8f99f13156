"""A configuration file as tables with places: JSON and YAML, base files, overrides, keys by their path.

Nothing is constructed but text, numbers, truth values and lists of them; a value with a tag of its own
(``!python/object``) is text. Base files are merged as the projects merge them:

    PaddleDetection  _BASE_: later files override earlier ones      ppdet/core/workspace.py
    PaddleSeg        _base_: earlier files override later ones;
                     _inherited_: False leaves a base's table out   paddleseg/cvlibs/config.py
    Hydra            defaults: [{group: name}, _self_], from the folder of each group
    others           OTHERS: as _BASE_, where they name files that are there
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ampbridge.errors import ArgumentError, SourceError, nearest
from ampbridge_port.reader import source
from ampbridge_port.reader.modules import is_within, root_of
from ampbridge_port.reading import Finding, Place

LARGEST = 2**18
"""Characters: ten times the longest that anybody writes; PyYAML is slow."""
DEEPEST = 100
MOST_BASES = 64
DETECTION, SEG, INHERITED, HYDRA = "_BASE_", "_base_", "_inherited_", "defaults"
OTHERS = ("BASE", "base", "__include__", "__base__", "include", "includes", "base_config")
MISSING: Any = object()


class Table(dict[str, Any]):
    """Values by key. ``place`` is that of the table; ``places`` has those of its values."""

    def __init__(
        self, values: Mapping[str, Any], place: Place, places: Mapping[str, Place]
    ) -> None:
        super().__init__(values)
        self.place, self.places = place, dict(places)

    def place_of(self, key: str) -> Place:
        """Where the value of ``key`` stands; the table, if there is none."""
        return self.places.get(key, self.place)

    def table(self, key: str) -> Table:
        """The table under ``key``; an empty one, if there is none."""
        value = self.get(key)
        return value if isinstance(value, Table) else Table({}, self.place, {})

    def having(self, key: str, value: Any, place: Place | None = None) -> Table:
        """A copy with another value under ``key``."""
        place = place or self.place_of(key)
        return Table({**self, key: value}, self.place, {**self.places, key: place})

    def without(self, *keys: str) -> Table:
        """A copy that lacks some keys."""
        return Table({k: v for k, v in self.items() if k not in keys}, self.place, self.places)

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Place]]:
        """Every value with its keys from the root on."""
        for key, value in self.items():
            yield (*path, key), value, self.place_of(key)
            for table in value if isinstance(value, list) else [value]:
                if isinstance(table, Table):
                    yield from table.walk((*path, key))

    def find(self, keys: Sequence[str]) -> tuple[Any, Place] | None:
        """The value whose path ends in the most of ``keys``, the last of them at least.

        None where there is none, and where several that differ fit as well.
        """
        wanted = [key.lower() for key in keys]
        best = 0
        found: list[tuple[Any, Place, bool]] = []
        for path, value, place in self.walk():
            length = 0
            for mine, theirs in zip(reversed(path), reversed(wanted), strict=False):
                if mine.lower() != theirs:
                    break
                length += 1
            if length > best:
                best, found = length, []
            if length and length == best:
                found.append((value, place, len(path) == length))
        whole = [each for each in found if each[2]] or found
        if not whole or any(each[0] != whole[0][0] for each in whole):
            return None
        return whole[0][:2]


def refused(file: str, why: str) -> SourceError:
    """Why a configuration is not read."""
    return SourceError(
        f"{file} {why}.\nHint: pass a DeepSpeed JSON file, or a YAML file of Accelerate, Lightning "
        "or a Paddle project."
    )


# -- one file


def parsed(text: str, file: str) -> Table:
    """The table that a file's text holds.

    Raises:
        SourceError: for what is no JSON and no YAML, holds no table, or is too large or too deep.
        SourceError: if PyYAML is not installed.
    """
    if len(text) > LARGEST:
        raise refused(file, f"has {len(text)} characters; at most {LARGEST} are read")
    if file.lower().endswith(".gin"):
        from ampbridge_port.reader import gin

        return gin.parsed(text, file)
    is_json = file.lower().endswith(".json")
    if is_json:
        _check_json(text, file)
        text = text.replace("\t", " ")
    try:
        import yaml
    except ImportError as error:
        msg = "Reading JSON and YAML needs PyYAML, which is not installed.\n"
        raise SourceError(msg + "Hint: pip install 'ampbridge[port]'") from error
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    too_deep = f"has more than {DEEPEST} tables and lists in each other"
    try:
        depth = 0
        for event in yaml.parse(text, Loader=loader):  # the composer recurses, without a limit
            name = type(event).__name__
            depth += name.endswith("StartEvent") - name.endswith("EndEvent")
            if depth > DEEPEST:
                raise refused(file, too_deep)
        node = yaml.compose(text, Loader=loader)
    except SourceError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        is_deep = "exceeded maximum nesting depth" in why  # libyaml's own limit
        raise refused(file, too_deep if is_deep else f"is no YAML: {why}") from error
    if getattr(node, "id", "") != "mapping":
        raise refused(file, "holds no table")
    table: Table = _Nodes(text, file, is_json).value(node)
    return table


def _check_json(text: str, file: str) -> None:
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise refused(file, f"is no JSON: {error or 'nested too deeply'}") from error
    if not isinstance(value, dict):
        raise refused(file, f"holds no table but {json.dumps(value):.80}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """DeepSpeed refuses a key that stands twice; so do we."""
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{twice!r} appears twice in one table")
    return dict(pairs)


class _Nodes:
    """Values of PyYAML's nodes; a node that several aliases stand for is read once."""

    def __init__(self, text: str, file: str, is_json: bool) -> None:
        self._text, self._file, self._is_json = text, file, is_json
        self._read: dict[int, Any] = {}

    def value(self, node: Any) -> Any:
        if id(node) not in self._read:
            self._read[id(node)] = MISSING
            self._read[id(node)] = self._value(node)
        if self._read[id(node)] is MISSING:
            line = node.start_mark.line + 1
            raise refused(self._file, f"has an alias that refers to itself, line {line}")
        return self._read[id(node)]

    def place(self, node: Any) -> Place:
        shown = " ".join(self._text[node.start_mark.index : node.end_mark.index].split())
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return Place(self._file, node.start_mark.line + 1, node.start_mark.column, shown)

    def _value(self, node: Any) -> Any:
        if node.id == "sequence":
            return [self.value(child) for child in node.value]
        if node.id != "mapping":
            return _scalar(node, self._is_json)
        values, places, merged = {}, {}, []
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                tables = value.value if value.id == "sequence" else [value]
                merged += [table for each in tables if isinstance(table := self.value(each), Table)]
            elif key.id == "scalar":
                values[key.value], places[key.value] = self.value(value), self.place(value)
        for table in merged:
            values, places = {**table, **values}, {**table.places, **places}
        return Table(values, self.place(node), places)


def _scalar(node: Any, is_json: bool) -> Any:
    kind, text = node.tag.removeprefix("tag:yaml.org,2002:"), node.value
    if is_json and not node.style:
        return json.loads(text)
    if kind == "null" or (text == "None" and not node.style and not is_json):
        return None
    if kind == "bool":
        return text.lower() in ("yes", "true", "on")
    try:
        if kind == "int":
            return int(text.replace("_", ""), 0) if len(text) < 400 else text
        if kind == "float":
            return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        pass  # base 60, or an octal number with a leading zero: none of our keys has them
    return text


# -- with its base files


def read(file: str) -> Table:
    """The table of a file, merged with those of its base files.

    Raises:
        SourceError: for a file that cannot be read, is its own base, or has too many.
    """
    return overridden(file, ())[0]


def _interpolated(value: Any, root: Table, depth: int = 0) -> Any:
    """A table with what ``${a.b}`` stands for, where the file has it."""
    if isinstance(value, Table):
        return Table(
            {k: _interpolated(v, root, depth) for k, v in value.items()}, value.place, value.places
        )
    if isinstance(value, list):
        return [_interpolated(each, root, depth) for each in value]
    named = re.fullmatch(r"\$\{([\w.]+)\}", value) if isinstance(value, str) else None
    if named is None or depth > 8:
        return value
    found: Any = root
    for key in named[1].split("."):
        found = found.get(key, MISSING) if isinstance(found, Table) else MISSING
    return value if found is MISSING else _interpolated(found, root, depth + 1)


def _with_bases(file: str, above: tuple[str, ...], root: str, read_: dict[str, Table]) -> Table:
    real = os.path.realpath(file)
    if real in above:
        chain = " -> ".join(os.path.relpath(each) for each in (*above[above.index(real) :], real))
        msg = f"{file} is a base of itself: {chain}.\n"
        raise SourceError(msg + f"Hint: leave it out of {DETECTION} or {SEG}.")
    if real not in read_:
        if len(read_) >= MOST_BASES:
            msg = f"{above[0]} has more than {MOST_BASES} base files.\n"
            raise SourceError(msg + "Hint: pass the merged file, which the trainer prints.")
        table = parsed(source.decoded(source.load(file), file), file)
        read_[real] = table
        read_[real] = _merged_with_bases(table, file, (*above, real), root, read_)
    return read_[real]


def _merged_with_bases(
    table: Table, file: str, above: tuple[str, ...], root: str, read_: dict[str, Table]
) -> Table:
    if HYDRA in table and isinstance(table[HYDRA], list):
        return _with_groups(table, file, above, root, read_)
    key = next((key for key in (DETECTION, SEG) if key in table), None)
    key = key or next((k for k in OTHERS if _names_files(table, k, file)), None)
    if key is None:
        return table
    place = table.place_of(key)
    names = [table[key]] if isinstance(table[key], str) else table[key]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        msg = f"{place}: {key} is {place.text}, and should be one file or several.\n"
        raise SourceError(msg + f"Hint: {key}: ['base.yml']")
    bases = []
    for name in filter(None, names):
        path = os.path.normpath(os.path.join(os.path.dirname(file), os.path.expanduser(name)))
        if not is_within(path, root):
            msg = f"{place}: {file} has the base {name!r}, which is outside of {root}.\n"
            raise SourceError(msg + "Hint: pass the merged file, which the trainer prints.")
        if not Path(path).exists():
            msg = f"{place}: {file} has the base {name!r}, which is not there: {path}.\n"
            raise SourceError(msg + "Hint: pass the file where it stands in its repository.")
        bases.append(_with_bases(path, above, root, read_))
    own = table.without(key)
    for base in bases if key == SEG else reversed(bases):
        own = merged(own, base)
    return own


def _names_files(table: Table, key: str, file: str) -> bool:
    """Whether a key of a common name has base files under it."""
    named = table.get(key)
    names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    folder = os.path.dirname(file)
    files = [n for n in names if isinstance(n, str) and n.endswith((".yml", ".yaml", ".json"))]
    return any(os.path.isfile(os.path.join(folder, name)) for name in files)


def _with_groups(
    table: Table, file: str, above: tuple[str, ...], root: str, read_: dict[str, Table]
) -> Table:
    """Hydra's ``defaults``: each names a file of a group, whose table stands under the group's key.

    A file that is of ``@package _global_`` stands at the root, and may override the choice of a group.
    """
    folder, own = Path(file).parent, table.without(HYDRA)
    chosen = _chosen(table[HYDRA])
    for group, name in [*chosen]:
        path = _group_file(folder, group, name)
        if path is not None and "@package _global_" in path.read_text("utf-8", "replace")[:200]:
            overriding = parsed(source.decoded(source.load(path), str(path)), str(path)).get(HYDRA)
            changed = dict(_chosen(overriding if isinstance(overriding, list) else []))
            chosen = [(g, changed.get(g, n)) for g, n in chosen]
    missing: list[list[Any]] = []
    for group, name in reversed(chosen):
        path = _group_file(folder, group, name)
        if path is None or not is_within(path, root):
            missing.insert(0, [group, name])
            continue
        text = source.decoded(source.load(path), str(path))
        base = parsed(text, str(path))
        is_global = "@package _global_" in text[:200]
        base = base.without(HYDRA) if is_global else _with_bases(str(path), above, root, read_)
        for key in reversed([] if is_global else [key for key in group.split("/") if key]):
            base = Table({key: base}, base.place, {})
        own = merged(base, own) if is_global else merged(own, base)
    missing = [each for each in missing if isinstance(each[1], str) and each[1] != "_self_"]
    return own.having(HYDRA, missing) if missing else own  # the program may have them


def _chosen(defaults: list[Any]) -> list[tuple[str, Any]]:
    """The groups of a list of defaults, each with the name of its file."""
    found: list[tuple[str, Any]] = []
    for each in defaults:
        for group, name in each.items() if isinstance(each, Table) else [("", each)]:
            group = group.removeprefix("override ").removeprefix("optional ")
            found.append((group.partition("@")[0].strip("/ "), name))
    return found


def _group_file(folder: Path, group: str, name: Any) -> Path | None:
    if not isinstance(name, str):
        return None
    paths = (folder / group / f"{name}{end}" for end in (".yaml", ".yml", ""))
    return next((path for path in paths if path.is_file()), None)


def merged(own: Table, base: Table) -> Table:
    """``base``, overridden by ``own``; of tables under one key, both."""
    if own.get(INHERITED) is False:
        return own.without(INHERITED)
    values, places = dict(base), {**base.places, **own.places}
    for key, value in own.items():
        below = base.get(key)
        if isinstance(value, Table):
            below = below if isinstance(below, Table) else Table({}, value.place, {})
            value = merged(value, below)
        values[key] = value
    return Table(values, own.place, places)


# -- overrides


def overridden(file: str, overrides: Sequence[str]) -> tuple[Table, tuple[Finding, ...]]:
    """As ``read``, with ``KEY=VALUE`` of a command line, and a note for each key that it adds.

    Raises:
        SourceError: as ``read`` does.
        ArgumentError: for an override that is not of this form, or goes into what is no table.
    """
    findings = []
    root = _with_bases(file, (), str(root_of(Path(os.path.abspath(file)).parent)), {})
    for text in overrides:
        key, equals, value = text.partition("=")
        keys = key.strip().lstrip("+").split(".")
        if not equals or not all(keys):
            msg = f"Cannot read the override {text!r}.\n"
            raise ArgumentError(msg + "Hint: -o AMP.use_amp=True")
        place = Place("-o", 1, 0, text)
        missing = _missing(root, keys)
        if missing is not None:
            close = nearest(missing[0], missing[1], 1)
            hint = f"did you mean {close[0]!r}?" if close else ""
            message = f"No file has the key {missing[0]!r}, which this adds."
            findings.append(Finding("note", place, message, hint))
        root = put(root, keys, _as_table(literal(value.strip()), place), place)
    return _interpolated(root, root), tuple(findings)


def _as_table(value: Any, place: Place) -> Any:
    """A plain dictionary as a table, all of it at one place."""
    if not isinstance(value, dict):
        return value
    return Table({str(key): _as_table(each, place) for key, each in value.items()}, place, {})


def _missing(table: Any, keys: Sequence[str]) -> tuple[str, list[str]] | None:
    for key in keys:
        if not isinstance(table, Table):
            return None
        if key not in table:
            return key, list(table)
        table = table[key]
    return None


def put(held: Any, keys: Sequence[str], value: Any, place: Place) -> Any:
    """A table with another value under a path of keys."""
    held = Table({}, place, {}) if held is None else held
    first, *others = keys
    if isinstance(held, Table):
        made = put(held.get(first), others, value, place) if others else value
        return held.having(first, made, place)
    if isinstance(held, list) and first.isdecimal() and int(first) < len(held):
        made = put(held[int(first)], others, value, place) if others else value
        return [*held[: int(first)], made, *held[int(first) + 1 :]]
    msg = f"The override {place.text!r} goes into {held!r}, which has no key {first!r}.\n"
    raise ArgumentError(msg + "Hint: -o AMP.use_amp=True")


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


def is_filled_in(value: Any) -> bool:
    """Whether a value stands for another that the file does not hold."""
    return isinstance(value, str) and (value == "auto" or "${" in value)
