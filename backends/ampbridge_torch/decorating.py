"""Fitting a model and its optimizer to a policy."""

from __future__ import annotations

from typing import Any

from ampbridge.backend import Decoration, Layer
from ampbridge.errors import UnsupportedError


def layers(model: Any) -> list[Layer]:
    """See ``Backend.layers``."""
    return [
        Layer(
            name,
            type(module).__name__,
            module,
            {key: tuple(p.shape) for key, p in module.named_parameters(recurse=False)},
        )
        for name, module in model.named_modules()
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
