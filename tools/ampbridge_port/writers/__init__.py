"""Recipes written as code of a framework.

A target is a module of this package with a ``TARGET``. It has two forms: native code, which needs no
ampbridge, and code that uses it. Each is a small module to import from your own code, with the
recipe's exact numbers at its top; with ``demo=True`` it also has a program that trains on random data.

    write(recipe, "tensorflow")                    # only Keras and TensorFlow
    write(recipe, "tensorflow", native=False)      # the same training with ampbridge
    write(recipe, "tensorflow", demo=True)         # a module that runs
    losses(recipe, "tensorflow")                   # how the native code differs

``losses`` lists how that code differs from the recipe; the fidelity report shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Literal

from ampbridge.errors import ArgumentError, listed, slips
from ampbridge.errors.foreign_text import on_one_line
from ampbridge.errors.slips import meant
from ampbridge.training.recipe import Recipe

TARGETS = ("ampbridge", "paddle", "tensorflow", "toml", "torch")

LossKind = Literal["changes", "lost"]
Comments = Mapping[str, str]
"""The source text of a key: ``{"scaler.init_scale": "init_loss_scaling=1024"}``."""


@dataclass(frozen=True, order=True)
class Loss:
    """A setting of a recipe that the written code does not follow exactly.

    ``key``: as in a recipe file, ``"scaler.max_scale"``. ``kind``: "changes", the code does it in
    another way, and results may differ; "lost", the code does not do it.
    """

    key: str
    kind: LossKind
    message: str


@dataclass(frozen=True)
class Form:
    """One way of writing for a target: the code, and how it differs from the recipe.

    ``losses`` and ``code`` use the same functions to decide, so they agree.
    """

    code: Callable[[Recipe, Comments, bool], str]
    """Given a recipe, comments by key, and whether there is a demo."""
    losses: Callable[[Recipe], tuple[Loss, ...]]


@dataclass(frozen=True)
class Target:
    """The two forms for a framework; they may be the same."""

    native: Form
    with_ampbridge: Form


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
        native: whether the module uses the framework's own API; otherwise it uses ampbridge.
        comments: comments for the settings: ``Alternative.said`` of a reading; for TOML ``comments``.
        demo: whether a model, random batches and a ``main()`` follow; TOML has none.

    Raises:
        ArgumentError: for an unknown target.
    """
    shown = {key: on_one_line(comment) for key, comment in comments.items()}
    return _form(target, native).code(recipe, shown, demo)


def losses(recipe: Recipe, target: str, *, native: bool = True) -> tuple[Loss, ...]:
    """How ``write(recipe, target, native=native)`` differs from ``recipe``; same arguments."""
    return _form(target, native).losses(recipe)


def _form(name: str, native: bool) -> Form:
    if name not in TARGETS:
        found = meant(name, TARGETS, slips.FRAMEWORKS)
        hint = "help(amp.port.write)" if found is None else f"amp.port.write(recipe, {found!r})"
        msg = f"Cannot write for {name!r}; allowed are {listed(TARGETS)}.\n"
        raise ArgumentError(f"{msg}Hint: {hint}")
    target: Target = import_module(f"{__name__}.{name}").TARGET
    return target.native if native else target.with_ampbridge
