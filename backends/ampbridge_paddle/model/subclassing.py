"""Objects that get other methods, by a class of their own.

Python looks ``__call__`` up on the class, and an attribute that holds a function over its own object
survives neither ``copy.deepcopy`` nor ``pickle``. So a decorated object gets a subclass of its class, of
the same name, with a mixin's methods ahead of its own.
"""

from __future__ import annotations

from functools import cache
from typing import Any


class Mixin:
    """Base of what is mixed in. Copies and pickles have the same class and the same state."""

    _mixin: type
    _own_class: type

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _new, (self._mixin, self._own_class), vars(self)


def mix_in(mixin: type[Mixin], obj: object) -> None:
    """Put the methods of ``mixin`` ahead of those of ``obj``; once is enough."""
    if not isinstance(obj, mixin):
        bases: tuple[type, type] = (mixin, type(obj))
        object.__setattr__(obj, "__class__", _subclass(*bases))


def take_out(mixin: type[Mixin], obj: object) -> None:
    """Take ``mix_in`` back, if it was done."""
    while isinstance(obj, mixin):
        object.__setattr__(obj, "__class__", obj._own_class)


@cache
def _subclass(mixin: type, own_class: type) -> type:
    names = ("__module__", "__qualname__", "__doc__")
    attributes = {name: getattr(own_class, name) for name in names}
    members = {**attributes, "_mixin": mixin, "_own_class": own_class}
    return type(own_class.__name__, (mixin, own_class), members)


def _new(mixin: type, own_class: type) -> Any:
    kind: Any = _subclass(mixin, own_class)
    return kind.__new__(kind)
