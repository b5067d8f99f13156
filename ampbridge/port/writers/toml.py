"""Recipes as TOML, which ``Recipe.load`` reads."""

from __future__ import annotations

from ampbridge.port.writers import Comments, Form, Target
from ampbridge.port.writers.ampbridge import no_losses
from ampbridge.training.recipe import Recipe


def _toml(recipe: Recipe, comments: Comments, demo: bool) -> str:
    return recipe.to_toml(comments)


_FORM = Form(_toml, no_losses)
TARGET = Target(native=_FORM, with_ampbridge=_FORM)
