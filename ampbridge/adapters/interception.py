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
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from threading import Lock
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ref

from ampbridge.adapters.scoped import Scope, Scoped

T = TypeVar("T")


INHERITED = object()
"""The original of an attribute that ``vars(owner)`` does not hold: it is deleted again."""


class Site(NamedTuple):
    """One attribute to replace. ``original`` is what ``vars(owner)`` holds, descriptors included.

    ``__class__`` of a module may be one: ``looked_up_in`` makes it, where very many names are replaced.
    """

    owner: Any
    attribute: str
    original: Any
    replacement: Any


def looked_up_in(module: ModuleType, replacements: Mapping[str, tuple[Any, Any]]) -> Site:
    """One site for all the attributes that code looks up in ``module`` each time: ``module.name``.

    To replace a thousand takes as long as a small step, to replace the module's class no time. What
    ``vars(module)`` holds stays as it is.

    Args:
        replacements: by name, an original and what replaces it. What somebody else has put into the
            module since is found as it is.
    """
    kind: Any = type(module)
    find = kind.__getattribute__

    class Replaced(kind):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            found = find(self, name)
            pair = replacements.get(name)
            return found if pair is None or pair[0] is not found else pair[1]

        def __setattr__(self, name: str, value: Any) -> None:
            # Who takes his own replacement back puts in what he found: a replacement of ours.
            original, ours = replacements.get(name, (None, None))
            super().__setattr__(name, original if ours is not None and value is ours else value)

    return Site(module, "__class__", kind, Replaced)


class _ClassOfModule:
    """The site of ``looked_up_in``."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def replace(self) -> None:
        self._site.owner.__class__ = self._site.replacement

    def put_back(self) -> None:
        if type(self._site.owner) is self._site.replacement:
            self._site.owner.__class__ = self._site.original


class _OfOneOwner:
    """The sites of one module, class or other object, replaced together: each step opens a region."""

    def __init__(self, owner: Any, sites: Collection[Site]) -> None:
        self._owner = owner
        self._originals = {site.attribute: site.original for site in sites}
        self._replacements = {site.attribute: site.replacement for site in sites}
        # All are read at once, and of a module set at once: a loop over them would take too long.
        self._read = itemgetter(*self._replacements)
        self._installed = self._read(self._replacements)
        self._set = vars(owner).update if type(owner) is ModuleType else self._set_each

    def replace(self) -> None:
        self._set(self._replacements)

    def put_back(self) -> None:
        """Put the originals back where the replacement is still there."""
        held = vars(self._owner)
        try:
            all_there = self._read(held) == self._installed
        except KeyError:
            all_there = False
        if all_there:
            self._set(self._originals)
        else:
            ours = [n for n, value in self._replacements.items() if held.get(n) is value]
            self._set({name: self._originals[name] for name in ours})

    def _set_each(self, values: Mapping[str, Any]) -> None:
        for attribute, value in values.items():
            if value is INHERITED:
                delattr(self._owner, attribute)
            else:
                setattr(self._owner, attribute, value)


def _grouped(sites: Sequence[Site]) -> list[_OfOneOwner | _ClassOfModule]:
    by_owner: dict[int, list[Site]] = defaultdict(list)
    for site in sites:
        if site.attribute != "__class__":
            by_owner[id(site.owner)].append(site)
    classes = [_ClassOfModule(site) for site in sites if site.attribute == "__class__"]
    return [*classes, *(_OfOneOwner(of_one[0].owner, of_one) for of_one in by_owner.values())]


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
        self._groups: Sequence[_OfOneOwner | _ClassOfModule] = ()
        self._installed: Sequence[_OfOneOwner | _ClassOfModule] = ()

    def region(self, state: T | None) -> Region[T]:
        """Make ``state`` the active one; None is a region in which nothing is intercepted."""
        return Region(self, state)

    def paused(self, state: T | None = None) -> Scope[T | None]:
        """Give a region another state for a while; this does not count as a region."""
        return self.active.during(state)

    def _open(self, region: Region[T]) -> None:
        with self._lock:
            if not (self._regions and self._has_regions()):  # as ahead of almost each step
                if self._installed:
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
            if not (self._regions and self._has_regions()):
                self._put_all_back()

    def _cut_off(self, region: ref[Region[T]]) -> None:
        """Called if a region is gone that was never closed: an interrupt ended its ``with`` statement early.

        A garbage collection may not wait for a lock; whoever holds it now, the next region to open
        or close puts all back.
        """
        self._regions.discard(region)
        if not self._lock.locked():
            with self._lock:
                if not self._has_regions():
                    self._put_all_back()

    def _has_regions(self) -> bool:
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
        # As ``Scope`` does: a step opens regions, and each call counts.
        self.variable, self.value, self.is_over = interception.active, state, False
        self._interception = interception

    def __enter__(self) -> None:
        try:
            self._interception._open(self)
            entered = self.variable.entered  # as ``Scope`` does
            entered.set((ref(self), entered.get()))
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
