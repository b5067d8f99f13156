"""Recipes as TOML, which ``Recipe.load`` reads."""

from __future__ import annotations

from ampbridge.training.recipe import Recipe
from ampbridge_port.writers import Target
from ampbridge_port.writers.code import Comments


def _toml(recipe: Recipe, comments: Comments, demo: bool) -> str:
    return recipe.to_toml(comments)


TARGET = Target(_toml, _toml)
