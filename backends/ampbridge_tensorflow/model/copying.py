"""Copies of a model and its optimizer. Keras copies each by itself, and an optimizer without slots."""

from __future__ import annotations

import copy
from typing import Any

import keras

from ampbridge.adapters.backend import Model, Optimizer
from ampbridge.errors import UnsupportedError
from ampbridge_tensorflow import _private


def copied(model: Model, optimizer: Optimizer, memo: dict[int, Any]) -> tuple[Model, Optimizer]:
    """See ``Backend.copied``; the model's copy is undecorated, as Keras makes it.

    Raises:
        UnsupportedError: for an optimizer of variables that the model does not hold.
    """
    twin = copy.deepcopy(model, memo)
    memo[id(model)] = twin
    other = type(optimizer).from_config(optimizer.get_config())
    memo[id(optimizer)] = other
    if optimizer.built:
        pairs = zip(model.trainable_variables, twin.trainable_variables, strict=True)
        twins = {id(variable): copy_of_it for variable, copy_of_it in pairs}
        trained = _private.optimizer_parameters(optimizer) or []
        if any(id(variable) not in twins for variable in trained):
            msg = (
                f"{type(optimizer).__name__} trains variables that the model does not hold.\n"
                "Hint: make both anew, and step.load(path) what step.save(path) has saved."
            )
            raise UnsupportedError(msg)
        other.build([twins[id(variable)] for variable in trained])
        for variable, present in zip(other.variables, optimizer.variables, strict=True):
            variable.assign(keras.ops.convert_to_tensor(present))
    return twin, other
