"""Restores what passes change in a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from flax import nnx

from ampbridge.adapters.restoring import remember_attributes
from ampbridge_jax._private import fill, value_of
from ampbridge_jax.model.variables import nodes


@contextmanager
def restored(model: Any) -> Iterator[None]:
    """See ``Backend.restored``. Arrays cannot change, and random generators are Variables."""
    with ExitStack() as stack:
        remember_attributes(stack, [node for _, node in nodes(model)], _remember)
        yield


def _remember(stack: ExitStack, held: Any) -> None:
    if isinstance(held, nnx.Variable):
        stack.callback(fill, held, value_of(held))
