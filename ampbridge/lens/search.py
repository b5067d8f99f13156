"""Group testing: the few culprits among many candidates, found by halving."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def culprits(candidates: Sequence[T], passes: Callable[[Sequence[T]], bool]) -> Iterator[T]:
    """A set that passes and from which nothing can be spared, one member after the other.

    Taken for granted: all ``candidates`` together pass, and more of them never hurt.

    while what was found does not pass by itself:
        prefix <- the shortest one that passes together with it, by halving
        its last candidate is a culprit: without it, nothing in that prefix passes
        go on in what stands before it

    Of several that can stand for one another the first is taken. With k culprits among n it takes
    at most k * (log2(n) + 1) + 1 calls of ``passes``, with log2(n) rounded up.
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
    """``found`` without members that it passes without: what is left fails without any one of them."""
    for i in range(len(found)):
        rest = [*found[:i], *found[i + 1 :]]
        if passes(rest):
            return without_spare(rest, passes)
    return list(found)
