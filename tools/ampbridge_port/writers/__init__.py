"""Recipes written as code of a framework.

A target is a module of this package with a ``TARGET``. Native code uses the framework's own API alone;
what that lacks is written with ampbridge. A module is imported from your own code, and has the
recipe's exact numbers at its top; with ``demo=True`` it also has a program that trains on random data.

    write(recipe, "tensorflow")                    # only Keras and TensorFlow
    write(recipe, "tensorflow", native=False)      # the same training with ampbridge
    losses(recipe, "tensorflow")                   # how the code differs from the recipe
    lacks(recipe, "torch")                         # the settings for which torch itself has nothing
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Literal

from ampbridge.errors import ArgumentError, listed, slips
from ampbridge.errors.foreign_text import on_one_line
from ampbridge.errors.slips import meant
from ampbridge.training.recipe import Recipe
from ampbridge_port.writers.code import Comments

LossKind = Literal["changes", "lost"]

TARGETS = ("ampbridge", "jax", "paddle", "tensorflow", "toml", "torch")


@dataclass(frozen=True, order=True)
class Loss:
    """A setting of a recipe that the written code does not follow exactly.

    ``key``: as in a recipe file, ``"scaler.max_scale"``. ``kind``: "changes", the code does it in
    another way, and results may differ; "lost", the code does not do it. ``message`` ends with what to
    write by hand so that it is kept, where that can be.
    """

    key: str
    kind: LossKind
    message: str


@dataclass(frozen=True)
class Target:
    """What is written for a framework, natively and with ampbridge, and how each differs from a recipe.

    ``lacks``: the keys of a recipe for which the framework itself has nothing; then native code is
    code with ampbridge. ``losses`` is given the ops that the ported script names, if that is known.
    """

    native: Callable[[Recipe, Comments, bool], str]
    with_ampbridge: Callable[[Recipe, Comments, bool], str]
    lacks: Callable[[Recipe], tuple[str, ...]] = lambda recipe: ()
    losses: Callable[[Recipe, Collection[str] | None], tuple[Loss, ...]] = lambda recipe, used: ()
    losses_with_ampbridge: Callable[[Recipe], tuple[Loss, ...]] = lambda recipe: ()


def write(
    recipe: Recipe,
    target: str,
    *,
    native: bool = True,
    comments: Comments = MappingProxyType({}),
    demo: bool = False,
) -> str:
    """Write ``recipe`` as a module for ``target``, or as TOML.

    Args:
        recipe: the recipe to write.
        target: one of ``TARGETS``. "ampbridge" trains on any framework; its demo uses NumPy.
        native: whether the module uses the framework's own API, as far as that has the recipe's
            settings; otherwise it uses ampbridge.
        comments: comments for the settings: ``Alternative.said`` of a reading; for TOML ``comments``.
        demo: whether a model, random batches and a ``main()`` follow; TOML has none.

    Raises:
        ArgumentError: for an unknown target.
    """
    shown = {key: on_one_line(comment) for key, comment in comments.items()}
    found = _target(target)
    code = found.with_ampbridge if not native or found.lacks(recipe) else found.native
    return code(recipe, shown, demo)


def losses(
    recipe: Recipe, target: str, *, native: bool = True, used: Collection[str] | None = None
) -> tuple[Loss, ...]:
    """How ``write(recipe, target, native=native)`` differs from ``recipe``.

    Args:
        used: the ops that the ported script names, as ``Reading.ops``; no other op is mentioned.
    """
    found = _target(target)
    if not native or found.lacks(recipe):
        return found.losses_with_ampbridge(recipe)
    return found.losses(recipe, used)


def lacks(recipe: Recipe, target: str) -> tuple[str, ...]:
    """The keys of ``recipe`` that make ``write`` use ampbridge, as ``target`` itself has nothing for them."""
    return _target(target).lacks(recipe)


def _target(name: str) -> Target:
    if name not in TARGETS:
        found = meant(name, TARGETS, slips.FRAMEWORKS)
        hint = "help(amp.port.write)" if found is None else f"amp.port.write(recipe, {found!r})"
        msg = f"Cannot write for {name!r}; allowed are {listed(TARGETS)}.\n"
        raise ArgumentError(f"{msg}Hint: {hint}")
    target: Target = import_module(f"{__name__}.{name}").TARGET
    return target
