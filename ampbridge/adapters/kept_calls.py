"""Which kept layers are called in a block: of the others, ``keep`` has no effect there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

_noting: dict[
    int, set[int]
] = {}  # whatever thread calls: replicas of a model have threads of their own


def note(layer: object) -> None:
    """A kept layer, or one below it, is called."""
    for noted in list(_noting.values()):
        noted.add(id(layer))


def are_noted() -> bool:
    """Whether such a block is open: in the first step of a training."""
    return bool(_noting)


@contextmanager
def noting() -> Iterator[Callable[[], Collection[int] | None]]:
    """See ``Backend.noting_kept_calls``."""
    noted: set[int] = set()
    _noting[id(noted)] = noted
    try:
        yield lambda: noted
    finally:
        del _noting[id(noted)]
