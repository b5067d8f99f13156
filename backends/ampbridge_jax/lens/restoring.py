"""Restores what passes change in a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ampbridge.adapters.restoring import remember_attributes
from ampbridge_jax._private import fill, value_of
from ampbridge_jax.model.kinds import named_variables, nodes


@contextmanager
def restored(model: Any) -> Iterator[None]:
    """See ``Backend.restored``. Arrays cannot change, and random generators are Variables."""
    with ExitStack() as stack:
        remember_attributes(stack, [node for _, node in nodes(model)], lambda stack, held: None)
        for _, variable in named_variables(model):
            stack.callback(fill, variable, value_of(variable))
        yield
