"""Group testing: find the few culprits among many candidates by halving."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def culprits(candidates: Sequence[T], passes: Callable[[Sequence[T]], bool]) -> Iterator[T]:
    """Yield the members of a minimal set that passes, one after the other.

    Requires that all ``candidates`` together pass, and that adding candidates never makes a set fail.

    while the culprits so far do not pass:
        prefix <- the shortest prefix that passes together with them, found by halving
        its last candidate is a culprit: the prefix does not pass without it
        continue with the candidates before it

    If several candidates can replace each other, it yields the first. With k culprits among n it
    takes at most k * (log2(n) + 1) + 1 calls of ``passes``, with log2(n) rounded up.
    """
    found: list[T] = []
    prefix = list(candidates)
    while not passes(found):
        failing, passing = 0, len(prefix)
        while passing - failing > 1:
            middle = (failing + passing) // 2
            if passes([*found, *prefix[:middle]]):
                passing = middle
            else:
                failing = middle
        found.append(prefix[passing - 1])
        yield prefix[passing - 1]
        prefix = prefix[: passing - 1]


def without_spare(found: Sequence[T], passes: Callable[[Sequence[T]], bool]) -> list[T]:
    """A minimal part of ``found`` that passes: it fails if any of its members is removed."""
    for i in range(len(found)):
        rest = [*found[:i], *found[i + 1 :]]
        if passes(rest):
            return without_spare(rest, passes)
    return list(found)
