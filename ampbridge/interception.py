"""Attribute replacements that stand only while a region is open.

Frameworks without an autocast of their own are made to cast by replacing the functions through
which their ops are called. The rule of good manners is the same for all of them and stands here:

* every private name is looked up before the first one is replaced, so that a framework that moved
  cannot be left half patched;
* replacements are installed when the first region of the process opens and removed when the last
  one closes, by exception or not; afterwards every attribute is the original object;
* which region is active is a context variable: other threads and tasks pass straight through;
* an attribute that somebody else replaced on top of ours is left to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


INHERITED = object()
"""The original of an attribute that ``vars(owner)`` does not hold: it is deleted again."""


class Site(NamedTuple):
    """One attribute to replace. ``original`` is what ``vars(owner)`` holds, descriptors included."""

    owner: Any
    attribute: str
    original: Any
    replacement: Any


class Interception(Generic[T]):
    """Installs the sites that ``find_sites`` lists for as long as any region is open.

    ``active`` holds the innermost region's state in this thread or task, None outside of any;
    replacements look at it at each call. ``find_sites`` is called each time that the first region
    opens; it may cache.
    """

    def __init__(self, name: str, find_sites: Callable[[], Sequence[Site]]) -> None:
        self.active: ContextVar[T | None] = ContextVar(name, default=None)
        self._find_sites = find_sites
        self._lock = Lock()
        self._open_regions = 0
        self._installed: Sequence[Site] = ()

    @contextmanager
    def region(self, state: T | None) -> Iterator[None]:
        """Make ``state`` the active one; None is a region in which nothing is intercepted."""
        self._enter()
        token = self.active.set(state)
        try:
            yield
        finally:
            self.active.reset(token)
            self._leave()

    @contextmanager
    def paused(self, state: T | None = None) -> Iterator[None]:
        """Within a region: another state for a while, without counting as a region."""
        token = self.active.set(state)
        try:
            yield
        finally:
            self.active.reset(token)

    def is_changing(self) -> bool:
        """Whether a first region is being opened or a last one closed, in whatever thread."""
        return self._lock.locked()

    def _enter(self) -> None:
        with self._lock:
            if self._open_regions == 0:
                sites = self._find_sites()
                for site in sites:
                    setattr(site.owner, site.attribute, site.replacement)
                self._installed = sites
            self._open_regions += 1

    def _leave(self) -> None:
        with self._lock:
            self._open_regions -= 1
            if self._open_regions == 0:
                for site in reversed(self._installed):
                    if vars(site.owner).get(site.attribute) is site.replacement:
                        _put_back(site)
                self._installed = ()


def _put_back(site: Site) -> None:
    if site.original is INHERITED:
        delattr(site.owner, site.attribute)
    else:
        setattr(site.owner, site.attribute, site.original)
