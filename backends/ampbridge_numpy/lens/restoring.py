"""What a pass changes in a model, and where its random numbers come from, put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ampbridge.adapters.restoring import remember_attributes
from ampbridge_numpy.nn import Module


@contextmanager
def restored(model: Module) -> Iterator[None]:
    """See ``Backend.restored``: of each module all that it holds. NumPy's global generator is the core's."""
    with ExitStack() as stack:
        modules = [module for _, module in model.named_modules()]
        remember_attributes(stack, modules, lambda stack, held: None)
        yield
