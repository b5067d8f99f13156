"""Activation checkpoints whose recomputation follows the lists.

Torch brings ``torch.autocast`` back when it recomputes, but no function mode: the non-reentrant
variant would raise a CheckpointError, the reentrant one would silently compute other gradients. So
while a region has lists, both remember them. (``torch.compile`` is served by the mode.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

from torch.utils import checkpoint as torch_checkpoint

from ampbridge.adapters.interception import Interception, Region, Site
from ampbridge_torch import _private
from ampbridge_torch.autocast.mode import active_mode, listed

Recomputed = Callable[..., Any]


def under_present_lists(function: Recomputed) -> Recomputed:
    """``function`` with the lists of this call in force at each run."""
    mode = active_mode()
    if mode is None:
        return function
    rules = mode.rules

    def under_lists(*args: Any, **kwargs: Any) -> Any:
        with listed(rules, active_mode()):
            return function(*args, **kwargs)

    return under_lists


@cache
def _sites() -> Sequence[Site]:
    """Torch's two entry points, as far as this version has them."""
    reentrant = _private.lookup("CheckpointFunction")
    without_reentrant = _private.lookup("_checkpoint_without_reentrant_generator")
    replacements: dict[Any, Any] = {}
    if reentrant is not None:

        class CheckpointFunction(reentrant):  # type: ignore[misc, valid-type]
            @classmethod
            def apply(cls, function: Recomputed, *args: Any) -> Any:
                return reentrant.apply(under_present_lists(function), *args)

        replacements[reentrant] = CheckpointFunction
    if without_reentrant is not None:

        def generator(function: Recomputed, *args: Any, **kwargs: Any) -> Any:
            return without_reentrant(under_present_lists(function), *args, **kwargs)

        replacements[without_reentrant] = generator
    return [Site(torch_checkpoint, own.__name__, own, ours) for own, ours in replacements.items()]


checkpoints_follow: Callable[[], AbstractContextManager[None]] = partial(
    Region, Interception("torch checkpoints", _sites), None
)
"""A context in which torch's own ``checkpoint`` remembers the lists that it is called under."""
