"""Weights and slots, as arrays by name.

The keys of random generators have a dtype of their own: a checkpoint has none, as of other frameworks'
generators. A learning rate that changes is a slot (``optax.inject_hyperparams``) or a function of the
optimizer's count, which is one.
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
from ampbridge_jax.model.variables import named_modules, named_parameters, own_variables
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
    for each in _held(model):
        floating = bool(jnp.issubdtype(each.tensor.dtype, jnp.inexact))
        found.append(Weight(each.name, *role_of(each, ROLES), tuple(each.tensor.shape), floating))
    return found


def read_weights(model: Model) -> dict[str, np.ndarray]:
    """See ``Backend.read_weights``."""
    return {each.name: _read(each.tensor) for each in _held(model)}


def write_weights(model: Model, values: Mapping[str, np.ndarray]) -> None:
    """See ``Backend.write_weights``."""
    for each in _held(model):
        _write(each.tensor, values[each.name])


def _held(model: Model) -> Iterator[Held]:
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
    return [name for name, _ in named_parameters(model)]


# -- optimizers


def read_optimizer(optimizer: Optimizer, model: Model) -> OptimizerState:
    """See ``Backend.read_optimizer``. The slots have optax's own names."""
    optimizers.acquaint(model, optimizer)
    held = {**dict(optimizers.slots(optimizer)), **_outside(optimizer, model)}
    return OptimizerState({name: _read(variable) for name, variable in held.items()}, {})


def write_optimizer(optimizer: Optimizer, model: Model, state: OptimizerState) -> None:
    """See ``Backend.write_optimizer``. Nothing is changed if it raises."""
    optimizers.acquaint(model, optimizer)
    left, slots = dict(state.slots), dict(optimizers.slots(optimizer))
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


def _outside(optimizer: Optimizer, model: Model) -> dict[str, Any]:
    """The optimizer's parameters that the model does not have."""
    own = [variable for _, variable in named_parameters(model)]
    return outside.among(optimizers.parameters(optimizer), own)
