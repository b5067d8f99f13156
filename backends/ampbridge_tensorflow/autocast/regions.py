"""The rules that the ops of this thread follow now, and what stands in TensorFlow's places meanwhile.

Functions of TensorFlow and Keras are replaced as long as any region is open in the process, and
look at each call at the rules that are active in their own thread or task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from ampbridge.adapters.interception import Interception, Site
from ampbridge_tensorflow._private import PrivateName
from ampbridge_tensorflow.autocast.rules import Rules

P = ParamSpec("P")
R = TypeVar("R")
Replace = Callable[[Any], Any]
"""Takes what a private name stands for, and returns what replaces it while a region is open."""

REPLACEMENTS: dict[PrivateName, Replace] = {}


def replaces(*names: PrivateName) -> Callable[[Replace], Replace]:
    """A decorator for the function that makes a region's replacement of ``names``."""

    def register(replace: Replace) -> Replace:
        REPLACEMENTS.update(dict.fromkeys(names, replace))
        return replace

    return register


def defining_class(kind: type, method: str) -> type | None:
    """The class from which ``kind`` has ``method``; None if it has none."""
    return next((base for base in kind.__mro__ if method in vars(base)), None)


def method_site(kind: type, method: str, replace: Replace) -> Site:
    """A method of ``kind``, replaced on the class that defines it."""
    owner = defining_class(kind, method)
    assert owner is not None
    original = vars(owner)[method]
    return Site(owner, method, original, replace(original))


def _find_sites() -> Sequence[Site]:
    from ampbridge_tensorflow.autocast import casting  # which imports this module

    return casting.find_sites()


regions: Interception[Rules] = Interception("ampbridge_tensorflow", _find_sites)

active_rules = regions.active.get
"""The rules of the innermost region of this thread or task; None outside of any."""


def replacement_where(state: Callable[[], Any], run: Callable[..., Any]) -> Replace:
    """A replacement that calls ``run(state(), original, *args)``; the original where that is None."""

    def replace(original: Any) -> Any:
        @wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            found = state()
            if found is None:
                return original(*args, **kwargs)
            return run(found, original, *args, **kwargs)

        return replacement

    return replace


in_regions = partial(replacement_where, active_rules)
"""A decorator: in a region, a function of its rules, the original and the arguments runs instead."""


def outside_of_regions(function: Callable[P, R]) -> Callable[P, R]:
    """``function`` in plain TensorFlow, whatever region its caller stands in."""

    @wraps(function)
    def plain(*args: P.args, **kwargs: P.kwargs) -> R:
        with regions.paused(None):
            return function(*args, **kwargs)

    return plain
