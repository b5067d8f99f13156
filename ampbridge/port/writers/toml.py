"""Recipes as TOML, which ``Recipe.load`` reads."""

from __future__ import annotations

from ampbridge.port.writers import Form, Target
from ampbridge.port.writers.ampbridge import no_losses
from ampbridge.training.recipe import Recipe

_FORM = Form(Recipe.to_toml, no_losses)
TARGET = Target(native=_FORM, with_ampbridge=_FORM)
