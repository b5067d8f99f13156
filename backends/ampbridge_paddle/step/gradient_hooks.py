"""Hooks on the gradients of parameters: whether there are any, and our own among them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ampbridge_paddle._private import method

Tensor = Any


@dataclass(slots=True)
class _Seen:
    parameter: weakref.ref[Tensor]
    next_number: int = 0
    hooked: bool = False


# By id: a tensor cannot be a key, since == compares its elements.
_seen: dict[int, _Seen] = {}


def has_had_hooks(parameter: Tensor) -> bool:
    """Whether anyone but us ever hooked ``parameter``.

    Paddle does not list hooks, but numbers them: a hook that gets a higher number than the last
    one's successor comes after one of somebody else's.
    """
    remove(parameter, register(parameter, lambda _: None))
    return _seen[id(parameter)].hooked


def register(parameter: Tensor, hook: Callable[[Tensor], Tensor | None]) -> int:
    """Register a hook of our own, and return the number by which ``remove`` takes it away."""
    number: int = method("Tensor", parameter, "_register_grad_hook")(hook)
    key = id(parameter)
    if key not in _seen:
        _seen[key] = _Seen(weakref.ref(parameter, lambda _: _seen.pop(key, None)))
    seen = _seen[key]
    seen.hooked |= number != seen.next_number
    seen.next_number = number + 1
    return number


def remove(parameter: Tensor, number: int) -> None:
    """Take a hook of our own away."""
    method("Tensor", parameter, "_remove_grad_hook")(number)
