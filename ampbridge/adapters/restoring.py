"""What the parts of a model hold in their attributes, put back after passes that may have changed it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np

from ampbridge.adapters.nested import holds_the_same, plain_copy

Remember = Callable[[ExitStack, Any], None]


def remember_attributes(stack: ExitStack, parts: Iterable[Any], remember: Remember) -> None:
    """Have ``stack`` put back all attributes of ``parts``: the same objects, with the same values.

    That is also the content of lists, dicts, sets and deques in them, of NumPy's arrays, and of the
    generators of NumPy and Python.

    Args:
        remember: has the stack put back the values of a native array or generator; called with every
            other object that is held.
    """
    seen: set[int] = set()

    def visit(held: Any) -> None:
        if id(held) in seen:
            return
        seen.add(id(held))
        if isinstance(held, (dict, list, set, deque)):
            stack.callback(_refill_if_changed, held, plain_copy(held))
        elif not isinstance(held, tuple):
            _remember_value(stack, held, remember)
            return
        for each in list(held.values() if isinstance(held, dict) else held):
            visit(each)

    for part in parts:
        visit(vars(part))


def _refill_if_changed(held: Any, kept: Any) -> None:
    """Refill a container unless it is unchanged: some containers notice that they are written to."""
    if holds_the_same(held, kept):
        return
    if isinstance(held, list):
        held[:] = kept
        return
    held.clear()
    held.extend(kept) if isinstance(held, deque) else held.update(kept)


def _remember_value(stack: ExitStack, held: Any, remember: Remember) -> None:
    if isinstance(held, np.ndarray):
        stack.callback(_put_back, held, held.copy())
    elif isinstance(held, np.random.Generator):
        stack.callback(setattr, held.bit_generator, "state", held.bit_generator.state)
    elif isinstance(held, np.random.RandomState):
        stack.callback(held.set_state, held.get_state(legacy=False))
    elif isinstance(held, random.Random):
        stack.callback(held.setstate, held.getstate())
    else:
        remember(stack, held)


def _put_back(array: np.ndarray, values: np.ndarray) -> None:
    if array.tobytes() != values.tobytes():  # others may be read-only
        array[...] = values
