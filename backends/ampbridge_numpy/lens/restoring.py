"""What a pass changes in a model, and where its random numbers come from, put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from ampbridge_numpy.nn import Module


@contextmanager
def restored(model: Module) -> Iterator[None]:
    """See ``Backend.restored``: of each module its arrays, generators and mode.

    NumPy's global generator is the core's to give back.
    """
    with ExitStack() as stack:
        for _, module in model.named_modules():
            stack.callback(setattr, module, "training", module.training)
            _remember_arrays(stack, module)
            for held in [*module._own_parameters().values(), *vars(module).values()]:
                _remember_values(stack, held)
        yield


def _remember_arrays(stack: ExitStack, module: Module) -> None:
    """Which arrays the module holds: some are assigned anew by each pass."""
    attributes = vars(module)
    arrays = {name: each for name, each in attributes.items() if isinstance(each, np.ndarray)}
    stack.callback(attributes.update, arrays)


def _remember_values(stack: ExitStack, held: Any) -> None:
    if isinstance(held, np.ndarray):
        stack.callback(_put_back, held, held.copy())
    elif isinstance(held, np.random.Generator):
        stack.callback(setattr, held.bit_generator, "state", held.bit_generator.state)
    elif isinstance(held, np.random.RandomState):
        stack.callback(held.set_state, held.get_state(legacy=False))


def _put_back(array: np.ndarray, values: np.ndarray) -> None:
    if array.tobytes() != values.tobytes():  # others may be read-only
        array[...] = values
