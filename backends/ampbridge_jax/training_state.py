"""Weights and slots, as arrays by name.

The keys of random generators have a dtype of their own: a checkpoint has none, as of other frameworks'
generators. A learning rate that changes is a slot (``optax.inject_hyperparams``) or a function of the
optimizer's count, which is one. Of Keras' models and optimizers the names and settings are those on
TensorFlow, and the states of seed generators are saved with the slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ampbridge.adapters.backend import Model, Optimizer
from ampbridge.adapters.roles.saving import OptimizerState
from ampbridge.checkpoints import outside
from ampbridge.checkpoints.held import Held, each_once, role_of, unique
from ampbridge.checkpoints.weights import Weight
from ampbridge.errors import StateError
from ampbridge_jax import optimizers
from ampbridge_jax._private import fill, value_of
from ampbridge_jax.model.kinds import kind_of, named_modules, named_variables, own_variables
from ampbridge_jax.step.placing import spread_as


def weights(model: Model) -> list[Weight]:
    """See ``Backend.weights``."""
    found, kind = [], kind_of(model)
    for each in _weights(model):
        role = role_of(each, kind.roles, kind.hides_attributes)
        floating = bool(jnp.issubdtype(each.tensor.dtype, jnp.inexact))
        found.append(Weight(each.name, *role, tuple(each.tensor.shape), floating))
    return found


def read_weights(model: Model) -> dict[str, np.ndarray]:
    """See ``Backend.read_weights``."""
    return {each.name: _read(each.tensor) for each in _weights(model)}


def write_weights(model: Model, values: Mapping[str, np.ndarray]) -> None:
    """See ``Backend.write_weights``."""
    for each in _weights(model):
        _write(each.tensor, values[each.name])


def _weights(model: Model) -> list[Held]:
    return kind_of(model).weights_among(all_variables(model), model)


def all_variables(model: Model) -> list[Held]:
    """Each Variable of a model, under a name that is of the model alone."""
    kind_of(model).check_built(model)
    every = (
        Held(f"{prefix}.{name}".lstrip("."), module, name, variable)
        for prefix, module in named_modules(model, lasting=True)
        for name, variable in own_variables(module)
    )
    found = list(each_once(every))
    names = unique(each.name for each in found)
    return [each._replace(name=name) for each, name in zip(found, names, strict=True)]


def names_of(variables: Sequence[Any], model: Model) -> list[str]:
    """The names of weights; a Variable that is not the model's gets its place in the list."""
    names = {id(each.tensor): each.name for each in all_variables(model)}
    return [names.get(id(v), outside.name_of(place)) for place, v in enumerate(variables)]


def parameter_names(model: Model) -> list[str]:
    """See ``Backend.parameter_names``."""
    return names_of(optimizers.parameters(model), model)


def _read(variable: Any) -> np.ndarray:
    values = np.array(value_of(variable))
    return values.astype(np.float32) if values.dtype == jnp.bfloat16 else values


def _write(variable: Any, values: np.ndarray) -> None:
    before = value_of(variable)
    fill(variable, spread_as(jnp.asarray(values, before.dtype), before))


# -- optimizers


def read_optimizer(optimizer: Optimizer, model: Model) -> OptimizerState:
    """See ``Backend.read_optimizer``. The slots have optax's own names."""
    optimizers.acquaint(model, optimizer)
    kind = optimizers.of(optimizer)
    held = {**kind.state(optimizer, model), **_outside(optimizer, model)}
    slots = {name: _read(variable) for name, variable in held.items()}
    return OptimizerState(slots, kind.settings(optimizer))


def write_optimizer(optimizer: Optimizer, model: Model, state: OptimizerState) -> None:
    """See ``Backend.write_optimizer``. Nothing is changed if it raises."""
    optimizers.acquaint(model, optimizer)
    kind = optimizers.of(optimizer)
    kind.check_settings(optimizer, state.settings)
    left, slots = dict(state.slots), kind.state(optimizer, model)
    others = _outside(optimizer, model)
    values = outside.taken_from(left, {name: _read(v) for name, v in others.items()})
    wanted = {name: tuple(value_of(v).shape) for name, v in slots.items()}
    given = {name: tuple(value.shape) for name, value in left.items()}
    for name in sorted(wanted.keys() | given.keys()):
        if wanted.get(name) != given.get(name):
            raise StateError(
                f"slot {name!r} has the shape {given.get(name, 'of nothing')}, the optimizer's "
                f"has {wanted.get(name, 'none')}.\n"
                "Hint: step.load(path) of what step.save(path) wrote of the same optimizer."
            )
    for name, variable in {**slots, **others}.items():
        _write(variable, {**left, **values}[name])
    kind.set_settings(optimizer, state.settings)


def _outside(optimizer: Optimizer, model: Model) -> dict[str, Any]:
    """The optimizer's parameters that the model does not have."""
    own = [variable for _, variable in named_variables(model)]
    return outside.among(optimizers.parameters(optimizer), own)
