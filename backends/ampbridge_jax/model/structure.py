"""What a trace takes for constant in modules and optimizers, and whether it still is what it was."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any

import jax
import numpy as np
from flax import nnx

from ampbridge_jax._private import NODES, STATE, metadata_of

_CONTAINERS = (nnx.Variable, nnx.Pytree, list, Mapping)
_values: Callable[[dict[Any, Any]], Iterable[Any]] = dict.values


class Structure:
    """The Variables of some roots, and all else in them that code may read: a trace is found by it.

    It is current while the same objects are in the same containers. This is asked at each step, and is
    a walk along flat lists. Once it is not, a new structure is made, and the keys tell.

    Attributes:
        variables: each once, in the order of their definition.
        key: equal to that of another if a trace for the one is right for the other, with its Variables.
    """

    def __init__(self, roots: Sequence[Any]) -> None:
        self.variables: list[Any] = []
        self._owners: list[Any] = []
        self._dicts: list[dict[Any, Any]] = []
        self._lists: list[list[Any]] = []
        self._is_settled = True
        self._places: dict[int, int] = {}
        self._parts: list[Any] = []
        for root in roots:
            self._add(root)
        self.key: Hashable = tuple(self._parts)
        self._metadata = [dict(metadata_of(variable)) for variable in self.variables]
        self._before = self._around()
        self._held = [*self._objects()]

    def is_current(self) -> bool:
        """Whether nothing has changed; also False where only a new structure can tell."""
        return (
            self._is_settled
            and self._around() == self._before
            and [*map(metadata_of, self.variables)] == self._metadata
            and all(map(is_, self._objects(), self._held))
        )

    def _around(self) -> list[Any]:
        """The names in dicts, the lengths of all containers, and the classes of objects."""
        dicts, lists = self._dicts, self._lists
        names = chain.from_iterable(dicts)
        return [*names, *map(len, dicts), *map(len, lists), *map(type, self._owners)]

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
            self._is_settled = False
            self._parts += [value.dtype, value.shape, value.tobytes()]
        elif isinstance(value, tuple):
            self._parts += [kind, len(value)]
            for item in value:
                self._add(item)
        elif isinstance(value, _CONTAINERS) or not _is_constant(value):
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
            metadata = metadata_of(value)
            self._add_items(metadata.items(), len(metadata))
            if not all(map(_is_constant, metadata.values())):
                self._is_settled = False  # of what has no hash, equality says little
        elif isinstance(value, dict):
            self._dicts.append(value)
            self._add_items(value.items(), len(value))
        elif hasattr(value, "__dict__"):
            self._owners.append(value)
            self._dicts.append(vars(value))
            self._add_items(vars(value).items(), len(vars(value)))
        else:
            self._is_settled = False
            if isinstance(value, Mapping):
                self._add_items(value.items(), len(value))
            else:
                self._parts.append(frozenset(value) if isinstance(value, set) else _Itself(value))

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


def _is_constant(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
