"""Objects as they were: what they and their containers hold, to be put back if something fails."""

from __future__ import annotations

from typing import Any

from ampbridge.adapters.nested import holds_the_same, plain_copy

_SETTERS = ("load_state_dict", "set_state_dict")


class Remembered:
    """What ``objects`` hold at this moment: attributes, and dicts, lists and sets in them, with what
    subclasses of these hold besides, or in their place.

    So do other objects in them that can be set to a state, such as the schedulers of a scheduler.
    Arrays are remembered as objects, not by their values.
    """

    def __init__(self, *objects: Any) -> None:
        self._kept: list[tuple[Any, Any]] = []
        seen: dict[int, Any] = {}
        waiting = [vars(each) for each in objects if hasattr(each, "__dict__")]
        while waiting:
            value = waiting.pop()
            if id(value) in seen:
                continue
            seen[id(value)] = value
            is_container = isinstance(value, (dict, list, set))
            if is_container:
                self._kept.append((value, plain_copy(value)))
            if is_container or isinstance(value, tuple):
                waiting += value.values() if isinstance(value, dict) else value
            has_a_state = any(hasattr(type(value), name) for name in _SETTERS)
            if (is_container or has_a_state) and hasattr(value, "__dict__"):
                waiting.append(vars(value))

    def put_back(self) -> None:
        """Let all objects hold what they held, the same objects."""
        # Backwards, so that what a container holds its items in comes before itself.
        for container, kept in reversed(self._kept):
            if not holds_the_same(container, kept):
                _fill(container, kept)


def _fill(container: Any, kept: Any) -> None:
    """Refill it by the built-in classes' own methods: subclasses may do more."""
    if isinstance(container, dict):
        dict.clear(container)
        dict.update(container, kept)
    elif isinstance(container, set):
        set.clear(container)
        set.update(container, kept)
    else:
        list.__setitem__(container, slice(None), kept)
