"""Fitting a model and its optimizer to a policy."""

from __future__ import annotations

from typing import Any

from ampbridge.backend import Decoration, Layer
from ampbridge.errors import UnsupportedError


def layers(model: Any) -> list[Layer]:
    """See ``Backend.layers``."""
    named = [("", model), *model.named_sublayers()]
    return [
        Layer(
            name,
            type(layer).__name__,
            layer,
            {key: tuple(p.shape) for key, p in layer.named_parameters(include_sublayers=False)},
        )
        for name, layer in named
    ]


def decorate(model: Any, optimizer: Any, decoration: Decoration) -> None:
    """See ``Backend.decorate``."""
    if decoration.policy.level == "O2" or decoration.kept:
        raise UnsupportedError("not yet")


def undecorate(model: Any, optimizer: Any) -> None:
    """See ``Backend.undecorate``."""


def decoration(model: Any, optimizer: Any) -> Decoration | None:
    """See ``Backend.decoration``."""
    return None
