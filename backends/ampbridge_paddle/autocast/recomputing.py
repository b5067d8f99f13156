"""Recompute (activation checkpointing): run twice in the same region, and noticed where it runs.

On a device with 16-bit kernels Paddle keeps its own autocast state for the second run; a simulated
region is entered again here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, wraps
from typing import Any

import paddle

from ampbridge.adapters.interception import INHERITED, Interception, Site
from ampbridge_paddle._private import private
from ampbridge_paddle.autocast import simulation
from ampbridge_paddle.autocast.functions import Function


class Recomputation:
    """What is known about recompute in the computation of a loss."""

    is_reentrant = False
    """Whether part of it calls ``backward()`` again during backward."""


@contextmanager
def noticed() -> Iterator[Recomputation]:
    """Note in the yielded ``Recomputation`` what is recomputed in the block.

    The graph would tell it as well, but whoever reads ``grad_fn`` leaks the graph (Paddle 3.3.1).
    """
    seen = Recomputation()
    with _interception.region(seen):
        yield seen


def followed() -> AbstractContextManager[None]:
    """Let what the block runs be recomputed in the region in which it ran."""
    return _interception.region(_interception.active.get())


def _in_present_region(function: Function, inputs: Any) -> Function:
    """Make ``function`` enter the present region whenever it runs.

    ``inputs``, among other arguments, are what it is called with. The second time they are copies,
    which were made outside of the region and have lost their marks.
    """
    region = simulation.active_region()
    if region is None:
        return function

    def tensors(tree: Any) -> list[Any]:
        return [x for x in paddle.utils.flatten(tree) if isinstance(x, paddle.Tensor)]

    marks = [simulation.low_dtype(x) for x in tensors(inputs)]

    def in_region(*inputs: Any, **options: Any) -> Any:
        with followed(), simulation.entering(region):
            for x, dtype in zip(tensors((inputs, options)), marks, strict=True):
                if dtype is not None:
                    simulation.mark(x, region, dtype)
            return function(*inputs, **options)

    return in_region


def _followed(original: Function, is_reentrant: bool) -> Function:
    """Make ``original``, which recomputes a function, do so in the region in which it ran."""

    @wraps(original)
    def recompute(function: Function, *args: Any, **kwargs: Any) -> Any:
        seen = _interception.active.get()
        if is_reentrant and seen is not None:
            seen.is_reentrant = True
        return original(_in_present_region(function, (args, kwargs)), *args, **kwargs)

    return recompute


_MODULE = "paddle.distributed.fleet.recompute.recompute"
_BY_HOOKS = "_recompute_without_reentrant"
_REENTRANT = (f"{_MODULE}.RecomputeFunction", f"{_MODULE}_hybrid._HPRecomputeFunction")


@cache
def _sites() -> Sequence[Site]:
    by_hooks = private(f"{_MODULE}.{_BY_HOOKS}")
    sites = [Site(sys.modules[_MODULE], _BY_HOOKS, by_hooks, _followed(by_hooks, False))]
    for kind in map(private, _REENTRANT):
        sites.append(Site(kind, "apply", INHERITED, staticmethod(_followed(kind.apply, True))))
    return sites


_interception: Interception[Recomputation] = Interception("ampbridge_paddle_recompute", _sites)
