"""Restores what passes change in a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ampbridge.adapters.restoring import remember_attributes
from ampbridge_numpy.nn import Module


@contextmanager
def restored(model: Module) -> Iterator[None]:
    """See ``Backend.restored``. The core restores NumPy's global random generator."""
    with ExitStack() as stack:
        modules = [module for _, module in model.named_modules()]
        remember_attributes(stack, modules, lambda stack, held: None)
        yield
