"""Operations on values: copies, merges, comparisons, plain Python values."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ampbridge_port.reader import settings
from ampbridge_port.reader.dialects import is_known_library
from ampbridge_port.reader.source import module_of, text_of
from ampbridge_port.reader.values import (
    Bound,
    Class,
    Dictionary,
    Function,
    Instance,
    Items,
    Known,
    Library,
    Made,
    Method,
    Model,
    Options,
    Passed,
    Unknown,
    Value,
)
from ampbridge_port.reading import Place

if TYPE_CHECKING:
    from ampbridge_port.reader.machine import Machine

MOST_ITEMS = 2000
"""As many items has a list that grows, at most."""


DICTIONARIES = frozenset({
    "dict", "OrderedDict", "UserDict", "CfgNode", "ConfigDict", "FrozenConfigDict", "EasyDict",
    "Munch", "AttrDict", "Box", "DotMap", "Dict", "HParams",
})  # fmt: skip
"""Classes whose objects are dictionaries."""


def of_table(value: Any, place: Place | None) -> Value:
    """What a configuration has, as a value."""
    if isinstance(value, settings.Table):
        items = {key: of_table(each, value.place_of(key)) for key, each in value.items()}
        return Dictionary(dict(items), place=place)
    if isinstance(value, list):
        return Items("list", [of_table(each, place) for each in value], place=place)
    return Known(value, place=place)


def depending(value: Value, options: Options) -> Value:
    """A value that also depends on some options."""
    if options and isinstance(value, Known):
        return Known(value.data, value.options | options, value.place)
    if options and isinstance(value, Unknown):
        return replace(value, options=value.options | options)
    return value


def as_dictionary(value: Value) -> Dictionary | None:
    """A dictionary, or the attributes of a namespace."""
    if isinstance(value, Dictionary):
        return value
    if isinstance(value, Instance) and value.cls is None:
        return Dictionary(value.attributes)
    return None


def update(held: Dictionary, more: Value, node: ast.AST) -> None:
    """``held.update(more)``."""
    table = as_dictionary(more)
    if isinstance(more, Items) and all(
        isinstance(e, Items) and len(e.items) == 2 for e in more.items
    ):
        pairs = [e.items for e in more.items if isinstance(e, Items)]
        table = Dictionary({k.data: v for k, v in pairs if isinstance(k, Known)})
    if table is None:
        held.rest = held.rest or (more if isinstance(more, Unknown) else Unknown(node))
        return
    held.items.update(table.items)
    held.rest = held.rest or table.rest


def merge(held: Dictionary, more: Value, node: ast.AST) -> None:
    """``update``, table by table."""
    table = as_dictionary(more)
    if table is None:
        update(held, more, node)
        return
    for key, value in table.items.items():
        below = held.items.get(key)
        if isinstance(below, Dictionary) and isinstance(value, Dictionary):
            merge(below, value, node)
        else:
            held.items[key] = value
    held.rest = held.rest or table.rest


def nested(held: Dictionary) -> Dictionary:
    """A dictionary whose tables can be read by attributes, too."""
    held.by_attribute = True
    for value in held.items.values():
        if isinstance(value, Dictionary):
            nested(value)
    return held


def copied(value: Value) -> Value:
    """A deep copy."""
    match value:
        case Dictionary():
            items = {key: copied(each) for key, each in value.items.items()}
            return Dictionary(items, value.rest, value.by_attribute, value.cls, value.place)
        case Items():
            return Items(
                value.kind, [copied(each) for each in value.items], value.whole, value.place
            )
        case Instance() if value.made is None:
            held = value.attributes.items()
            tables = {k: copied(each) for k, each in held if isinstance(each, (Dictionary, Items))}
            return Instance(value.cls, {**value.attributes, **tables}, None, value.node)
    return value


def dictionary_of(passed: Sequence[Passed]) -> Dictionary:
    """``dict(...)``."""
    made = Dictionary({})
    for each in passed:
        if each.name:
            made.items[each.name] = each.value
        else:
            update(made, each.value, each.node)
    return made


def plain(value: Value | None) -> Any:
    """The plain Python value that a value stands for; ``ValueError`` where it is not known."""
    match value:
        case Known():
            return value.data
        case Items() if value.whole:
            kinds: Mapping[str, Callable[[Iterable[Any]], Any]] = {"tuple": tuple, "set": set}
            return kinds.get(value.kind, list)(plain(each) for each in value.items)
        case Dictionary() if value.rest is None:
            return {key: plain(each) for key, each in value.items.items()}
    raise ValueError


def options_of(*values: Value | None) -> Options:
    """The options on which values depend."""
    found: Options = frozenset()
    for value in values:
        if isinstance(value, Known):
            found |= value.options
        elif isinstance(value, Items):
            found |= options_of(*value.items)
    return found


def of_plain(data: Any, options: Options = frozenset()) -> Value:
    """A plain Python value as a value."""
    if isinstance(data, dict):
        return Dictionary({key: of_plain(each, options) for key, each in data.items()})
    if isinstance(data, (list, tuple, set)) and not hasattr(data, "fields"):
        return Items(type(data).__name__, [of_plain(each, options) for each in data])
    return Known(data, options)


def is_same(left: Value, right: Value) -> bool | None:
    """Whether two values are one; None where that is not known."""
    for each, other in ((left, right), (right, left)):
        if isinstance(each, Library) and not is_known_library(each.qualified):
            return None
        if isinstance(each, Made) and isinstance(other, Known) and isinstance(other.data, str):
            return False if each.qualified == "torch.device" else None
    if isinstance(left, Library) and isinstance(right, Library):
        return left.qualified == right.qualified
    none = [isinstance(each, Known) and each.data is None for each in (left, right)]
    sure = (Instance, Function, Class, Bound, Items, Dictionary, Library, Made, Model, Method)
    attribute = any(isinstance(e, Method) and isinstance(e.receiver, Made) for e in (left, right))
    if any(none) and not attribute and any(isinstance(each, sure) for each in (left, right)):
        return False
    if all(isinstance(each, (Instance, Class, Function)) for each in (left, right)):
        return left is right
    if {type(left), type(right)} == {Known, Library} or {type(left), type(right)} == {Known, Items}:
        return False
    return None


def doubt(machine: Machine, held: Dictionary, node: ast.AST, *, of_files: bool = False) -> None:
    """What a dictionary has may be changed by what is not known; ``of_files``: also what a file says."""
    module = module_of(node)
    for key, value in held.items.items():
        if isinstance(value, Dictionary) and value is not held:
            doubt(machine, value, node, of_files=of_files)
        if not isinstance(value, Known) or value.options or not (of_files or value.place is None):
            continue
        if isinstance(value.data, (str, int, float)):
            place, by = module.place(node), f"`{text_of(node)}`"
            made = machine.option(f"{place} {key}", str(key), by, place, value.data)
            made.place, held.items[key] = value.place, made


def set_path(held: Dictionary, keys: Sequence[str], value: Value) -> None:
    for key in keys[:-1]:
        below = held.items.setdefault(key, Dictionary({}))
        if not isinstance(below, Dictionary):
            return
        held = below
    if isinstance(value, Known) and isinstance(value.data, str):
        value = Known(settings.literal(value.data), value.options, value.place)
    held.items[keys[-1]] = value
