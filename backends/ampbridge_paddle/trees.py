"""Values inside of lists, tuples and dicts."""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping
from typing import Any


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """``tree`` with ``function`` applied inside of its lists, tuples and mappings, whose types stay."""
    if isinstance(tree, MutableMapping):
        mapped = copy.copy(tree)
        for key, value in tree.items():
            mapped[key] = map_leaves(function, value)
        return mapped
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(function, value) for value in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_leaves(function, value) for value in tree)
    return function(tree)
