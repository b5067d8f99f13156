"""Weights and slots, as arrays by name.

The keys of random generators have a dtype of their own: a checkpoint has none, as of other frameworks'
generators. A learning rate that changes is a slot (``optax.inject_hyperparams``) or a function of the
optimizer's count, which is one. Of Keras' models and optimizers the names and settings are those on
TensorFlow, and the states of seed generators are saved with the slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from ampbridge.adapters.backend import Model, Optimizer
from ampbridge.adapters.roles.saving import OptimizerState
from ampbridge.checkpoints import outside
from ampbridge.checkpoints.held import Held, Roles, each_once, role_of
from ampbridge.checkpoints.weights import Weight
from ampbridge.errors import StateError
from ampbridge_jax import optimizers
from ampbridge_jax._private import fill, value_of
from ampbridge_jax.model import keras_models
from ampbridge_jax.model.variables import (
    named_modules,
    named_parameters,
    named_variables,
    own_variables,
)
from ampbridge_jax.step.placing import spread_as

_NORMALIZATION: Roles = {
    "scale": ("norm.scale", "c"),
    "bias": ("norm.offset", "c"),
    "mean": ("norm.mean", "c"),
    "var": ("norm.variance", "c"),
}
ROLES: Mapping[type, Roles] = {
    nnx.Linear: {"kernel": ("dense.kernel", "io"), "bias": ("dense.bias", "o")},
    nnx.Conv: {"kernel": ("conv.kernel", "hwio"), "bias": ("conv.bias", "o")},
    nnx.Embed: {"embedding": ("embedding.table", "no")},
    **dict.fromkeys((nnx.LayerNorm, nnx.RMSNorm, nnx.GroupNorm, nnx.BatchNorm), _NORMALIZATION),
}


def weights(model: Model) -> list[Weight]:
    """See ``Backend.weights``."""
    found = []
    of_keras = keras_models.is_layer(model)
    roles = keras_models.roles() if of_keras else ROLES
    for each in _held(model):
        floating = bool(jnp.issubdtype(each.tensor.dtype, jnp.inexact))
        found.append(
            Weight(each.name, *role_of(each, roles, of_keras), tuple(each.tensor.shape), floating)
        )
    return found


def read_weights(model: Model) -> dict[str, np.ndarray]:
    """See ``Backend.read_weights``."""
    return {each.name: _read(each.tensor) for each in _held(model)}


def write_weights(model: Model, values: Mapping[str, np.ndarray]) -> None:
    """See ``Backend.write_weights``."""
    for each in _held(model):
        _write(each.tensor, values[each.name])


def _held(model: Model) -> Iterator[Held]:
    if keras_models.is_layer(model):
        return iter(keras_models.weights(model))
    return each_once(
        Held(f"{prefix}.{name}".lstrip("."), module, name, variable)
        for prefix, module in named_modules(model)
        for name, variable in own_variables(module)
        if not isinstance(variable, nnx.RngState)
    )


def _read(variable: Any) -> np.ndarray:
    values = np.array(value_of(variable))
    return values.astype(np.float32) if values.dtype == jnp.bfloat16 else values


def _write(variable: Any, values: np.ndarray) -> None:
    before = value_of(variable)
    fill(variable, spread_as(jnp.asarray(values, before.dtype), before))


def parameter_names(model: Model) -> list[str]:
    """See ``Backend.parameter_names``."""
    if keras_models.is_layer(model):
        return keras_models.names_of(optimizers.parameters(model), model)
    return [name for name, _ in named_parameters(model)]


# -- optimizers


def read_optimizer(optimizer: Optimizer, model: Model) -> OptimizerState:
    """See ``Backend.read_optimizer``. The slots have optax's own names."""
    optimizers.acquaint(model, optimizer)
    held = {**_slots(optimizer, model), **_outside(optimizer, model)}
    slots = {name: _read(variable) for name, variable in held.items()}
    return OptimizerState(slots, keras_models.settings_of(optimizer))


def write_optimizer(optimizer: Optimizer, model: Model, state: OptimizerState) -> None:
    """See ``Backend.write_optimizer``. Nothing is changed if it raises."""
    optimizers.acquaint(model, optimizer)
    keras_models.check_settings(optimizer, state.settings)
    left, slots = dict(state.slots), _slots(optimizer, model)
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
    keras_models.set_settings(optimizer, state.settings)


def _slots(optimizer: Optimizer, model: Model) -> dict[str, Any]:
    if keras_models.is_optimizer(optimizer):
        return dict(keras_models.state(optimizer, model))
    return dict(optimizers.slots(optimizer))


def _outside(optimizer: Optimizer, model: Model) -> dict[str, Any]:
    """The optimizer's parameters that the model does not have."""
    own = [variable for _, variable in named_variables(model)]
    return outside.among(optimizers.parameters(optimizer), own)
