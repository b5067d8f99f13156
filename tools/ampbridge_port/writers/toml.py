"""Recipes as TOML, which ``Recipe.load`` reads."""

from __future__ import annotations

from ampbridge.training.recipe import Recipe
from ampbridge_port.writers import Comments, Form, Target
from ampbridge_port.writers.ampbridge import no_losses


def _toml(recipe: Recipe, comments: Comments, demo: bool) -> str:
    return recipe.to_toml(comments)


_FORM = Form(_toml, no_losses)
TARGET = Target(native=_FORM, with_ampbridge=_FORM)
