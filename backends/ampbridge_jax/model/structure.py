"""What a trace takes for constant in modules and optimizers, and whether it still is what it was."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any

import jax
import numpy as np
from flax import nnx
from flax.core import FrozenDict

from ampbridge_jax._private import NODES, STATE, metadata_of
from ampbridge_jax.model.kinds import FLAX, keras, kind_of

_CONTAINERS = (nnx.Variable, nnx.Pytree, list, Mapping)
_values: Callable[[dict[Any, Any]], Iterable[Any]] = dict.values


class Structure:
    """The Variables of some roots, and all else in them that code may read: a trace is found by it.

    It is current while the same objects are in the same containers. This is asked at each step, and is
    a walk along flat lists. Once it is not, a new structure is made, and the keys tell: it takes some
    ten times as long.

    Attributes:
        variables: each once, in the order of their definition.
        key: equal to that of another if a trace for the one is right for the other, with its Variables.
    """

    def __init__(self, roots: Sequence[Any]) -> None:
        self.variables: list[Any] = []
        self._owners: list[Any] = []
        self._dicts: list[dict[Any, Any]] = []
        self._lists: list[list[Any]] = []
        self._contents: list[tuple[Any, Hashable]] = []
        self._of_keras: list[Any] = []
        self._places: dict[int, int] = {}
        self._parts: list[Any] = []
        for root in roots:
            self._add(root)
        self.key: Hashable = tuple(self._parts)
        self._metadata = [*map(metadata_of, self.variables)]
        self._before = self._around()
        self._held = [*self._objects()]

    def is_current(self) -> bool:
        """Whether nothing has changed; also False where only a new structure can tell."""
        return (
            self._around() == self._before
            and all(map(is_, map(metadata_of, self.variables), self._metadata))
            and all(map(is_, self._objects(), self._held))
            and all(_content(value) == content for value, content in self._contents)
        )

    def _around(self) -> list[Any]:
        """The names in dicts, the lengths of all containers, the classes of objects, what is frozen."""
        dicts, lists = self._dicts, self._lists
        names = chain.from_iterable(dicts)
        frozen = [variable.trainable for variable in self._of_keras]
        return [*names, *map(len, dicts), *map(len, lists), *map(type, self._owners), *frozen]

    def _objects(self) -> Iterable[Any]:
        """What the containers hold."""
        return chain.from_iterable(chain(map(_values, self._dicts), self._lists))

    # -- the walk, of one structure that is made

    def _add(self, value: Any) -> None:
        """Note what is in ``value``, and what tells it from others."""
        kind = type(value)
        if isinstance(value, jax.core.Tracer):
            self._parts.append(kind)  # was left behind by a trace: code cannot read it
        elif isinstance(value, jax.Array):
            self._parts.append(_Itself(value))
        elif isinstance(value, np.ndarray):
            self._parts.append(self._noted(value))
        elif isinstance(value, tuple):
            self._parts.append(kind)
            self._add_items(enumerate(value), len(value))
        elif isinstance(value, FrozenDict):
            self._parts.append(kind)
            self._add_items({**value}.items(), len(value))
        elif (of_keras := keras()) and isinstance(value, of_keras.Variable):
            self._of_keras.append(value)
            self._parts.append(value.trainable)
            self._add(of_keras.variable_of(value))
        elif (
            isinstance(value, _CONTAINERS) or not _is_constant(value) or kind_of(value) is not FLAX
        ):
            place = self._places.setdefault(id(value), len(self._parts))
            self._parts += [kind, place]
            if place == len(self._parts) - 2:
                self._add_content(value)
        else:
            self._parts += [kind, value]

    def _add_content(self, value: Any) -> None:
        """The same for what is in a container, or in an object."""
        if isinstance(value, list):
            self._lists.append(value)
            self._add_items(enumerate(value), len(value))
        elif isinstance(value, nnx.Variable):
            self._owners.append(value)
            self.variables.append(value)
            self._add_dict(metadata_of(value))
        elif isinstance(value, dict):
            self._add_dict(value)
        elif hasattr(value, "__dict__"):
            self._owners.append(value)
            self._dicts.append(vars(value))
            found = kind_of(value).content(value)
            self._add_items(found.items(), len(found))
        elif isinstance(value, Mapping):
            self._noted(value)
            self._add_items(value.items(), len(value))
        else:
            self._parts.append(self._noted(value))

    def _add_dict(self, items: dict[Any, Any]) -> None:
        self._dicts.append(items)
        self._add_items(items.items(), len(items))

    def _noted(self, value: Any) -> Hashable:
        """The content of what is in no flat list; it is asked for again at each step."""
        content = _content(value)
        self._contents.append((value, content))
        return content

    def _add_items(self, items: Iterable[tuple[Any, Any]], count: int) -> None:
        self._parts.append(count)
        for name, item in items:
            self._parts.append(name)
            if name == NODES:
                self._parts.append(item)
            elif name != STATE:
                self._add(item)


class _Itself:
    """An object that is equal to itself alone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _content(value: Any) -> Hashable:
    """What code may read in ``value``; of an object that shows nothing, the object itself."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return tuple((name, _Itself(item)) for name, item in value.items())
    return frozenset(value) if isinstance(value, set) else _Itself(value)


def _is_constant(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
