"""Attribute replacements that stand only while a region is open.

Frameworks without an autocast of their own are made to cast by replacing the functions through
which their ops are called. The rule of good manners is the same for all of them and stands here:

* every private name is looked up before the first one is replaced, so that a framework that moved
  cannot be left half patched;
* replacements are installed when the first region of the process opens and removed when the last
  one closes, by exception or not; afterwards every attribute is the original object;
* an interrupt in the middle of either leaves nothing: a region is open as long as its ``with``
  statement is there (``scoped``), and the last one to go takes the replacements with it;
* which region is active is a context variable: other threads and tasks pass straight through;
* an attribute that somebody else replaced on top of ours is left to them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from threading import Lock
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ref

from ampbridge.adapters.scoped import Scope, Scoped

T = TypeVar("T")


INHERITED = object()
"""The original of an attribute that ``vars(owner)`` does not hold: it is deleted again."""


class Site(NamedTuple):
    """One attribute to replace. ``original`` is what ``vars(owner)`` holds, descriptors included."""

    owner: Any
    attribute: str
    original: Any
    replacement: Any


class _OneByOne:
    """Sites of classes and other objects, whose attributes are set each by itself."""

    def __init__(self, sites: Iterable[Site]) -> None:
        self.sites = tuple(sites)

    def replace(self) -> None:
        for site in self.sites:
            setattr(site.owner, site.attribute, site.replacement)

    def put_back(self) -> None:
        """The originals, where the replacement is still there."""
        for site in reversed(self.sites):
            if vars(site.owner).get(site.attribute) is site.replacement:
                _put_back(site)


class _OfOneModule(_OneByOne):
    """Sites of one module, whose names are set all at once: each step opens and closes a region."""

    def __init__(self, sites: Iterable[Site]) -> None:
        super().__init__(sites)
        self._namespace = vars(self.sites[0].owner)
        self._originals = {site.attribute: site.original for site in self.sites}
        self._replacements = {site.attribute: site.replacement for site in self.sites}

    def replace(self) -> None:
        self._namespace.update(self._replacements)

    def put_back(self) -> None:
        present = map(self._namespace.get, self._replacements)
        if all(map(is_, present, self._replacements.values())):
            self._namespace.update(self._originals)
        else:
            super().put_back()


def _grouped(sites: Sequence[Site]) -> list[_OneByOne]:
    """Those of each module together, and the others in their order."""
    of_modules: dict[int, list[Site]] = defaultdict(list)
    others = []
    for site in sites:
        if type(site.owner) is ModuleType:
            of_modules[id(site.owner)].append(site)
        else:
            others.append(site)
    groups: list[_OneByOne] = list(map(_OfOneModule, of_modules.values()))
    return [_OneByOne(others), *groups] if others else groups


class Interception(Generic[T]):
    """Installs the sites that ``find_sites`` lists for as long as any region is open.

    ``active`` is the innermost region's state in this thread or task, None outside of any;
    replacements look at it at each call. ``find_sites`` is called each time that the first region
    opens; it may cache.
    """

    def __init__(self, name: str, find_sites: Callable[[], Sequence[Site]]) -> None:
        self.active: Scoped[T | None] = Scoped(name, None)
        self._find_sites = find_sites
        self._lock = Lock()
        self._regions: set[ref[Region[T]]] = set()
        self._sites: Sequence[Site] | None = None
        self._groups: Sequence[_OneByOne] = ()
        self._installed: Sequence[_OneByOne] = ()

    def region(self, state: T | None) -> Region[T]:
        """Make ``state`` the active one; None is a region in which nothing is intercepted."""
        return Region(self, state)

    def paused(self, state: T | None = None) -> Scope[T | None]:
        """Within a region: another state for a while, without counting as a region."""
        return self.active.during(state)

    def is_changing(self) -> bool:
        """Whether a first region is being opened or a last one closed, in whatever thread."""
        return self._lock.locked()

    def _open(self, region: Region[T]) -> None:
        with self._lock:
            if not self._has_regions():
                self._put_all_back()
                sites = self._find_sites()
                if sites is not self._sites:
                    self._groups, self._sites = _grouped(sites), sites
                self._installed = self._groups
                for group in self._installed:
                    group.replace()
            self._regions.add(ref(region, self._cut_off))

    def _close(self, region: Region[T]) -> None:
        with self._lock:
            self._regions.discard(ref(region))
            if not self._has_regions():
                self._put_all_back()

    def _cut_off(self, region: ref[Region[T]]) -> None:
        """A region is gone that was never closed: an interrupt ended its ``with`` statement too early.

        A garbage collection may not wait for a lock; whoever holds it now, the next region to open
        or close puts all back.
        """
        self._regions.discard(region)
        if not self._lock.locked():
            with self._lock:
                if not self._has_regions():
                    self._put_all_back()

    def _has_regions(self) -> bool:
        if not self._regions:
            return False  # as ahead of almost each step
        regions = [region() for region in tuple(self._regions)]
        return any(region is not None and not region.is_over for region in regions)

    def _put_all_back(self) -> None:
        for group in self._installed:
            group.put_back()
        self._installed = ()


class Region(Scope[T | None]):
    """One ``with`` statement of an interception."""

    __slots__ = ("_interception",)

    def __init__(self, interception: Interception[T], state: T | None) -> None:
        super().__init__(interception.active, state)
        self._interception = interception

    def __enter__(self) -> None:
        try:
            self._interception._open(self)
            super().__enter__()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exception: object) -> None:
        try:
            super().__exit__()
            self._interception._close(self)
        except BaseException:
            self.is_over = True
            self._interception._close(self)
            raise


def _put_back(site: Site) -> None:
    if site.original is INHERITED:
        delattr(site.owner, site.attribute)
    else:
        setattr(site.owner, site.attribute, site.original)
