"""Weights, slots and settings, as arrays by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ampbridge.adapters.backend import Model, Optimizer
from ampbridge.adapters.roles.saving import OptimizerState
from ampbridge.checkpoints import outside
from ampbridge.checkpoints.held import NORMALIZATION, Held, Roles, each_once, role_of
from ampbridge.checkpoints.weights import Weight
from ampbridge.errors import StateError, UnsupportedError
from ampbridge_numpy import optim
from ampbridge_numpy.model import low_arrays
from ampbridge_numpy.nn import (
    BatchNorm1d,
    BatchNorm2d,
    Conv2d,
    Embedding,
    LayerNorm,
    Linear,
)
from ampbridge_numpy.step.gradients import parameters

# Class -> its arrays' roles and axes.
ROLES: Mapping[type, Roles] = {
    Linear: {"weight": ("dense.kernel", "io"), "bias": ("dense.bias", "o")},
    Conv2d: {"weight": ("conv.kernel", "oihw"), "bias": ("conv.bias", "o")},
    Embedding: {"weight": ("embedding.table", "no")},
    **dict.fromkeys((LayerNorm, BatchNorm1d, BatchNorm2d), NORMALIZATION),
}


def weights(model: Model) -> list[Weight]:
    """See ``Backend.weights``."""
    found = []
    for each in _arrays(model):
        floating = np.issubdtype(each.tensor.dtype, np.inexact)
        found.append(Weight(each.name, *role_of(each, ROLES), each.tensor.shape, floating))
    return found


def read_weights(model: Model) -> dict[str, np.ndarray]:
    """See ``Backend.read_weights``."""
    return {each.name: each.tensor.copy() for each in _arrays(model)}


def write_weights(model: Model, values: Mapping[str, np.ndarray]) -> None:
    """See ``Backend.write_weights``."""
    arrays = list(_arrays(model))
    for each in arrays:
        each.tensor[...] = values[each.name]
    for low in low_arrays.among(each.tensor for each in arrays):
        low.to_nearest()


def _arrays(model: Model) -> Iterator[Held]:
    """Parameters and running statistics, each once."""
    return each_once(_all_arrays(model))


def _all_arrays(model: Model) -> Iterator[Held]:
    for prefix, module in model.named_modules():
        held = vars(module)
        known = [name for name in ROLES.get(type(module), ()) if name in held]
        buffers = {name: held[name] for name in known if isinstance(held[name], np.ndarray)}
        for attribute, array in {**module._own_parameters(), **buffers}.items():
            yield Held(f"{prefix}.{attribute}".lstrip("."), module, attribute, array)


# -- optimizers


def read_optimizer(optimizer: Optimizer, model: Model) -> OptimizerState:
    """See ``Backend.read_optimizer``."""
    slots = {
        f"{name}/{slot}": np.array(value)
        for name, state in _states(optimizer, model)
        for slot, value in state.items()
    }
    values = {name: array.copy() for name, array in _outside(optimizer, model).items()}
    return OptimizerState(
        {**slots, **values}, {"lr": optimizer.lr, "rounded_by_chance": optimizer.rounded_by_chance}
    )


def write_optimizer(optimizer: Optimizer, model: Model, state: OptimizerState) -> None:
    """See ``Backend.write_optimizer``. Nothing is changed if it raises."""
    rate = state.settings.get("lr")
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < math.inf:
        raise StateError(
            f"lr={rate!r:.100} is no rate.\nHint: step.load(path) of what step.save(path) wrote."
        )
    count = state.settings.get("rounded_by_chance")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise StateError(
            f"rounded_by_chance={count!r:.100} is no count.\n"
            "Hint: step.load(path) of what step.save(path) wrote."
        )
    left = dict(state.slots)
    others = _outside(optimizer, model)
    values = outside.taken_from(left, others)
    shapes = {name: array.shape for name, array in {**_parameters(model), **others}.items()}
    fitting: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for name, slots in _states(optimizer, model):
        saved: dict[str, Any] = {}
        for key in [key for key in left if key.rpartition("/")[0] == name]:
            value = left.pop(key)
            if value.shape not in (shapes[name], ()):
                raise StateError(f"slot {key!r} has the shape {value.shape}.\nHint: {shapes[name]}")
            saved[key.rpartition("/")[2]] = value.copy() if value.ndim else value.item()
        _check_slots(optimizer, name, shapes[name], saved)
        fitting.append((slots, saved))
    if left:
        raise StateError(f"slots of no parameter: {sorted(left)[:4]}.\nHint: the same optimizer.")
    for slots, saved in fitting:
        slots.clear()
        slots.update(saved)
    for low in low_arrays.among(optimizer.parameters):
        low.slots_to_nearest(optimizer)
    for name, array in others.items():
        array[...] = values[name]
    optimizer.lr = rate
    if count != optimizer.rounded_by_chance:
        optimizer.rounded_by_chance = count


def _check_slots(
    optimizer: Optimizer, name: str, shape: tuple[int, ...], saved: Mapping[str, Any]
) -> None:
    """Check that there are either no slots, or all that one of our optimizers makes for a parameter."""
    if not saved or type(optimizer).__module__ != optim.__name__:
        return
    made: dict[str, Any] = {}
    optimizer._step_one(np.zeros(shape, np.float32), np.ones(shape, np.float32), made)
    for slot, value in made.items():
        if slot not in saved or np.shape(saved[slot]) != np.shape(value):
            raise StateError(
                f"there is no slot '{name}/{slot}' of shape {np.shape(value)}.\n"
                "Hint: step.load(path) of what step.save(path) wrote of the same optimizer."
            )


def _states(optimizer: Optimizer, model: Model) -> list[tuple[str, dict[str, Any]]]:
    """The state of each parameter, under the parameter's name."""
    if not isinstance(optimizer, optim.Optimizer):
        msg = (
            f"{type(optimizer).__name__} is no optimizer of ampbridge_numpy.optim; what it remembers "
            "is not known.\nHint: class Mine(optim.Optimizer): ..."
        )
        raise UnsupportedError(msg)
    names = {id(array): name for name, array in _parameters(model).items()}
    return [
        (names.get(id(p), outside.name_of(place)), state)
        for place, (p, state) in enumerate(zip(optimizer.parameters, optimizer.state, strict=True))
    ]


def _outside(optimizer: Optimizer, model: Model) -> dict[str, np.ndarray]:
    """The optimizer's parameters that the model does not have."""
    return outside.among(optimizer.parameters, _parameters(model).values())


def _parameters(model: Model) -> dict[str, np.ndarray]:
    return dict(model.named_parameters())


def parameter_names(model: Model) -> list[str]:
    """See ``Backend.parameter_names``."""
    names = {id(array): name for name, array in _parameters(model).items()}
    return [names[id(array)] for array in parameters(model)]
