"""Objects as they were: what they and their containers hold, to be put back if something fails."""

from __future__ import annotations

from typing import Any

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
            if isinstance(value, dict):
                self._kept.append((value, dict(value)))
                waiting += value.values()
            elif isinstance(value, (list, set)):
                self._kept.append((value, list(value)))
                waiting += value
            elif isinstance(value, tuple):
                waiting += value
            if _has_a_state(value) or (_is_container(value) and hasattr(value, "__dict__")):
                waiting.append(vars(value))

    def put_back(self) -> None:
        """Let all objects hold what they held, the same objects."""
        # Backwards, so that what a container holds its items in comes before itself.
        for container, kept in reversed(self._kept):
            if not _holds(container, kept):
                _fill(container, kept)


def _is_container(value: Any) -> bool:
    return isinstance(value, (dict, list, set))


def _has_a_state(value: Any) -> bool:
    kind = type(value)
    return any(hasattr(kind, name) for name in _SETTERS) and hasattr(value, "__dict__")


def _holds(container: Any, kept: Any) -> bool:
    if len(container) != len(kept):
        return False
    if isinstance(container, dict):
        pairs = zip(container.items(), kept.items(), strict=True)
        return all(key is old and value is was for (key, value), (old, was) in pairs)
    return all(value is was for value, was in zip(container, kept, strict=True))


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
