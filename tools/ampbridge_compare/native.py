"""What an adapter's ``native_loop`` module is: its framework's own mixed precision, written by hand.

The loops use nothing of ampbridge but a recipe's numbers: they are what it is compared with.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, Protocol

import numpy.typing as npt

from ampbridge.adapters import registry
from ampbridge.training.recipe import Recipe
from ampbridge.workloads import Workload


class NativeStep(NamedTuple):
    """What a step did; ``scale`` is the one that its loss was multiplied by, 1.0 without a scaler."""

    loss: float
    scale: float
    applied: bool


class NativeLoop(Protocol):
    """``NativeLoop(build, recipe)``; ``build()`` makes the workload anew.

    Attributes:
        described: the calls that it is made of.
        execution: "native", or "none" where it turns out to run in float32.
        notes: what a reader of its figures must know.
    """

    workload: Workload
    described: str
    execution: Literal["native", "none"]
    notes: Sequence[str]

    @abstractmethod
    def gradients(self, batch: Sequence[Any], scale: float) -> list[npt.NDArray[Any]]:
        """Of the loss times ``scale``, by the present weights, in the order of the model's parameters."""

    @abstractmethod
    def step(self, batch: Sequence[Any]) -> NativeStep:
        """One step of training."""


def has_loop(backend: str) -> bool:
    """Whether a backend has a ``native_loop`` module. Imports nothing: the parent loads no framework."""
    package = registry.adapter_package(backend)
    spec = find_spec(package)
    if spec is None:
        return False
    found = PathFinder.find_spec(f"{package}.native_loop", spec.submodule_search_locations)
    return found is not None


def loop_of(backend: str, build: Callable[[], Workload], recipe: Recipe) -> NativeLoop:
    """A new loop, before its first step."""
    module = import_module(f"{registry.adapter_package(backend)}.native_loop")
    loop: NativeLoop = module.NativeLoop(build, recipe)
    return loop


_HONOURED = {
    "policy.level",
    "policy.dtype",
    "scaler.enabled",
    "scaler.init_scale",
    "scaler.growth_factor",
    "scaler.backoff_factor",
    "scaler.growth_interval",
}


def left_out(recipe: Recipe, besides: Collection[str] = ()) -> list[str]:
    """A note on the settings of the recipe that a loop does not support, without the op lists.

    Args:
        besides: keys of a recipe file, ``"scaler.growth_factor"``, that most loops support, but not this one.
    """
    settings = [
        f"{section}.{key}"
        for section, values in recipe.to_dict().items()
        for key in values
        if (section, key) != ("policy", "lists")
    ]
    rest = [key for key in settings if key not in _HONOURED or key in besides]
    return [f"The recipe's {', '.join(rest)} is not in this loop."] if rest else []
