"""Recipes written as code of a framework.

A target is a module of this package with a ``TARGET``. It has two forms: native code, which needs no
ampbridge, and code that uses it. Each is a whole program: a model, an optimizer and batches to put
one's own in place of, and a training loop with the recipe's exact numbers.

    write(recipe, "tensorflow")                    # Keras and TensorFlow alone
    write(recipe, "tensorflow", native=False)      # the same training with ampbridge
    losses(recipe, "tensorflow")                   # what the native code does otherwise

``losses`` says what that code does otherwise than the recipe; the fidelity report shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Literal

from ampbridge.errors import ArgumentError, listed, nearest
from ampbridge.errors.foreign_text import on_one_line
from ampbridge.training.recipe import Recipe

TARGETS = ("ampbridge", "paddle", "tensorflow", "toml", "torch")

LossKind = Literal["changes", "lost"]
Comments = Mapping[str, str]
"""What a key was called where it comes from: ``{"scaler.init_scale": "init_loss_scaling=1024"}``."""


@dataclass(frozen=True, order=True)
class Loss:
    """Something of a recipe that the written code does not do as the recipe says.

    ``key``: as in a recipe file, ``"scaler.max_scale"``. ``kind``: "changes", it is done in another
    way, and results may differ; "lost", it is not done.
    """

    key: str
    kind: LossKind
    message: str


@dataclass(frozen=True)
class Form:
    """One way of writing for a target: the code, and what it does otherwise than the recipe.

    ``losses`` and ``code`` decide by the same functions, so that neither says what the other does not.
    """

    code: Callable[[Recipe, Comments], str]
    losses: Callable[[Recipe], tuple[Loss, ...]]


@dataclass(frozen=True)
class Target:
    """What recipes are written for. A target with one form has it twice."""

    native: Form
    with_ampbridge: Form


def write(
    recipe: Recipe,
    target: str,
    *,
    native: bool = True,
    comments: Comments = MappingProxyType({}),
) -> str:
    """``recipe`` as a program for ``target``, or as TOML.

    Args:
        recipe: what to write.
        target: one of ``TARGETS``. "ampbridge" is a program for the NumPy backend.
        native: in the framework's own API; else with ampbridge.
        comments: shown behind the settings: ``Alternative.comments`` of a reading.

    Raises:
        ArgumentError: for a target that is none.
    """
    shown = {key: on_one_line(comment) for key, comment in comments.items()}
    return _form(target, native).code(recipe, shown)


def losses(recipe: Recipe, target: str, *, native: bool = True) -> tuple[Loss, ...]:
    """What ``write(recipe, target, native=native)`` does otherwise than ``recipe``; arguments as there."""
    return _form(target, native).losses(recipe)


def _form(name: str, native: bool) -> Form:
    if name not in TARGETS:
        close = nearest(name, TARGETS, 1) or ["tensorflow"]
        msg = f"Cannot write for {name!r}; allowed are {listed(TARGETS)}.\n"
        raise ArgumentError(msg + f"Hint: amp.port.write(recipe, {close[0]!r})")
    target: Target = import_module(f"{__name__}.{name}").TARGET
    return target.native if native else target.with_ampbridge
