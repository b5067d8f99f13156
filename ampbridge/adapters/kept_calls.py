"""Which kept layers are called in a block: of the others, ``keep`` has no effect there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary


class _Noted(set[int]):
    """The ids of layers, known until its block has ended or been dropped."""


# Whatever thread calls: replicas of a model have threads of their own.
_noting: WeakValueDictionary[int, _Noted] = WeakValueDictionary()


def note(layer: object) -> None:
    """Note that a kept layer, or one below it, is called."""
    for noted in list(_noting.values()):
        noted.add(id(layer))


def are_noted() -> bool:
    """Whether somebody notes calls: in the first step of a training."""
    return bool(_noting)


@contextmanager
def noting() -> Iterator[Callable[[], Collection[int] | None]]:
    """See ``Backend.noting_kept_calls``."""
    noted = _Noted()
    _noting[id(noted)] = noted
    try:
        yield lambda: noted
    finally:
        _noting.pop(id(noted), None)
