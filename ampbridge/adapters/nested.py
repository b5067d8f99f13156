"""Values inside of containers: in a batch, in what a model is given and returns.

Containers are lists, tuples (named ones too), deques, mappings of any class (``UserDict``,
``BatchEncoding``) and dataclasses. Everything else is a leaf, sets too: they have no order.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from operator import is_
from types import NoneType
from typing import Any


def map_leaves(
    function: Callable[[Any], Any], value: Any, leaf: type | tuple[type, ...] = ()
) -> Any:
    """``value`` with ``function`` applied to each of its leaves.

    A container in which something changes is copied, and keeps its class; a mapping that cannot be
    written to becomes a dict. One in which nothing changes is returned itself.

    Args:
        leaf: classes of containers that ``function`` sees to as a whole.
    """
    items = None if isinstance(value, leaf) else _items(value)
    if items is None:
        return function(value)
    keys, present = items
    mapped = [map_leaves(function, item, leaf) for item in present]
    return value if all(map(is_, mapped, present)) else _copy_with(value, keys, mapped)


def leaves(value: Any, leaf: type | tuple[type, ...] = ()) -> list[Any]:
    """The leaves of ``value``, in order; ``leaf`` as in ``map_leaves``."""
    items = None if isinstance(value, leaf) else _items(value)
    return [value] if items is None else [each for x in items[1] for each in leaves(x, leaf)]


def named_leaves(value: Any, name: str = "") -> dict[str, Any]:
    """The leaves by their keys, dotted; a leaf that is in no container has the name ""."""
    items = _items(value)
    if items is None:
        return {name: value}
    named = ((f"{name}.{key}".lstrip("."), item) for key, item in zip(*items, strict=True))
    return {key: leaf for each, item in named for key, leaf in named_leaves(item, each).items()}


class Structure:
    """The containers of ``value`` without their leaves, to be filled again.

    Equal to another where classes and keys are; what else a container remembers is ``value``'s.

    Attributes:
        size: how many leaves there are.
    """

    def __init__(self, value: Any) -> None:
        self._key = _key(value)
        self._empty = map_leaves(lambda _: None, value)
        self.size = len(leaves(value))

    def filled(self, values: Sequence[Any]) -> Any:
        """The containers around ``values``, one for each leaf."""
        remaining = iter(values)
        return map_leaves(lambda _: next(remaining), self._empty)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def plain_copy(held: Any) -> Any:
    """A container's content in a plain class: a framework may track copies of its own."""
    if isinstance(held, dict):
        return dict(held)
    return set(held) if isinstance(held, set) else list(held)


def holds_the_same(held: Any, kept: Any) -> bool:
    """Whether a container holds the same objects as its copy; what is equal may be another array."""
    if isinstance(kept, set):
        return {*map(id, held)} == {*map(id, kept)}
    if isinstance(kept, dict) and not all(map(is_, held.values(), kept.values())):
        return False
    return len(held) == len(kept) and all(map(is_, held, kept))


_LEAVES = frozenset({NoneType, bool, int, float, str})


def _items(value: Any) -> tuple[Sequence[Any], Sequence[Any]] | None:
    """The keys of what a container holds, and the values; None for a leaf."""
    if type(value) in _LEAVES:  # which the questions below would take the longest time to answer
        return None
    if isinstance(value, (list, tuple, deque)):
        return range(len(value)), value
    if type(value) is dict or isinstance(value, Mapping):
        return list(value.keys()), list(value.values())  # a TensorDict iterates over its examples
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if hasattr(value, field.name)]
        return names, [getattr(value, name) for name in names]
    return None


def _copy_with(value: Any, keys: Sequence[Any], items: Sequence[Any]) -> Any:
    if isinstance(value, deque):
        return type(value)(items, value.maxlen)
    if isinstance(value, (list, tuple)):
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, Mapping):
        pairs = dict(zip(keys, items, strict=True))
        if type(value) is dict or not isinstance(value, MutableMapping):
            return pairs
        changed = copy.copy(value)
        for key, item in pairs.items():
            if item is not value[key]:  # to write takes transformers' outputs long
                changed[key] = item
        return changed
    changed = copy.copy(value)
    for name, item in zip(keys, items, strict=True):
        object.__setattr__(changed, name, item)  # past what a frozen dataclass refuses
    return changed


def _key(value: Any) -> Any:
    items = _items(value)
    if items is None:
        return None
    return type(value), tuple((key, _key(item)) for key, item in zip(*items, strict=True))
