"""Weights, slots and settings, as arrays by name.

A weight is named as the attribute or the layer that holds it, without the numbers that Keras counts
over the whole process. The states of seed generators (dropout's, for one) are no weights: they travel
with the optimizer's state, so that a run goes on bit by bit, and do not stand in the way of weights
from another framework. A ``tf.random.Generator`` in a tf.Module is the user's own to save.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ampbridge.adapters.backend import Model, Optimizer
from ampbridge.adapters.roles.saving import OptimizerState
from ampbridge.checkpoints import outside
from ampbridge.checkpoints.held import Held, Roles, each_once, role_of, unique
from ampbridge.checkpoints.weights import Weight
from ampbridge.errors import CallOrderError, StateError, UnsupportedError
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.regions import outside_of_regions
from ampbridge_tensorflow.model import fitted
from ampbridge_tensorflow.model.model_layers import lasting_layers, own_variables
from ampbridge_tensorflow.native_values import is_variable, native_variable
from ampbridge_tensorflow.step.gradients import built_optimizer, parameters

_CONVOLUTIONS = {"1D": "w", "2D": "hw", "3D": "dhw"}
_DEPTHWISE = "depthwise_conv.kernel"
_BIAS = {"bias": ("conv.bias", "o")}
_SCALE_AND_OFFSET = {"gamma": ("norm.scale", "c"), "beta": ("norm.offset", "c")}

# Keras' name of a layer class -> its variables' roles and axes. In a depthwise convolution each channel
# "c" has "m" outputs.
ROLES: dict[str, Roles] = {
    "Dense": {"kernel": ("dense.kernel", "io"), "bias": ("dense.bias", "o")},
    "Embedding": {"embeddings": ("embedding.table", "no")},
    "BatchNormalization": {
        **_SCALE_AND_OFFSET,
        "moving_mean": ("norm.mean", "c"),
        "moving_variance": ("norm.variance", "c"),
    },
    "LayerNormalization": _SCALE_AND_OFFSET,
    "GroupNormalization": _SCALE_AND_OFFSET,
    "RMSNormalization": {"scale": ("norm.scale", "c")},
}
for _rank, _window in _CONVOLUTIONS.items():
    _kernel, _depthwise = ("conv.kernel", f"{_window}io"), (_DEPTHWISE, f"{_window}cm")
    _transposed = ("conv_transpose.kernel", f"{_window}oi")
    ROLES[f"Conv{_rank}"] = {"kernel": _kernel, **_BIAS}
    ROLES[f"Conv{_rank}Transpose"] = {"kernel": _transposed, **_BIAS}
    ROLES[f"DepthwiseConv{_rank}"] = {"kernel": _depthwise, **_BIAS}
    ROLES[f"SeparableConv{_rank}"] = {
        "depthwise_kernel": _depthwise,
        "pointwise_kernel": _kernel,
        **_BIAS,
    }
# A Keras that is older than a class has none of its layers. From subclasses Keras' own hide attributes.
_ROLES_OF_KINDS = {
    getattr(keras.layers, name): roles
    for name, roles in ROLES.items()
    if hasattr(keras.layers, name)
}


# -- weights


def weights(model: Model) -> list[Weight]:
    """See ``Backend.weights``.

    Raises:
        CallOrderError: for a Keras model that has not been built.
    """
    found = []
    for held in _weights(model):
        role = role_of(held, _ROLES_OF_KINDS, hides_attributes=True)
        shape, dtype = tuple(held.tensor.shape), held.tensor.dtype
        is_floating = bool(dtype.is_floating or dtype.is_complex)
        found.append(Weight(held.name, *role, shape, is_floating))
    return found


@outside_of_regions
def read_weights(model: Model) -> dict[str, np.ndarray]:
    """See ``Backend.read_weights``."""
    return {held.name: _read(held.tensor) for held in _weights(model)}


@outside_of_regions
def write_weights(model: Model, values: Mapping[str, np.ndarray]) -> None:
    """See ``Backend.write_weights``.

    Raises:
        StateError: where integers meet floating-point numbers; nothing is changed then.
    """
    held = {each.name: each.tensor for each in _weights(model)}
    for name, variable in held.items():
        if values[name].dtype.kind != _file_dtype(variable).kind:
            msg = (
                f"weight {name!r} is of dtype {variable.dtype.name}, not {values[name].dtype}.\n"
                "Hint: amp.load_weights(path, model, mapping={...})"
            )
            raise StateError(msg)
    for name, variable in held.items():
        variable.assign(values[name].astype(variable.dtype.as_numpy_dtype))
    found = fitted.fitted(model)
    if found is not None:
        found.weights_to_nearest()


def parameter_names(model: Model) -> list[str]:
    """See ``Backend.parameter_names``."""
    return _names_of(parameters(model), model)


def _weights(model: Model) -> list[Held]:
    random = _random_states(model)
    return [held for held in all_variables(model) if id(held.tensor) not in random]


def all_variables(model: Model) -> list[Held]:
    """All variables of a model, each once and under a name of its own."""
    if not getattr(model, "built", True):
        msg = (
            f"{model.name!r} ({type(model).__name__}) has not been built: it has no weights yet.\n"
            "Hint: model.build(input_shape), or model(x) once, before its weights are read or set."
        )
        raise CallOrderError(msg)
    found = list(each_once(_held_variables(model)))
    names = unique(held.name for held in found)
    return [held._replace(name=name) for held, name in zip(found, names, strict=True)]


def _held_variables(model: Model) -> Iterator[Held]:
    for prefix, _, layer, _ in lasting_layers(model):
        for attribute, variable in own_variables(layer).items():
            name = f"{prefix}.{attribute}".lstrip(".")
            yield Held(name, layer, attribute, native_variable(variable))
    # Variables in sets and the like, under their own names.
    for variable in getattr(model, "variables", ()):
        name = variable.name.partition(":")[0]
        yield Held(name, model, name, native_variable(variable))


def _random_states(model: Model) -> set[int]:
    """The ids of seed generators' variables, which Keras does not count among the weights."""
    kept = [part.layer for part in lasting_layers(model) if isinstance(part.layer, keras.Layer)]
    everything = {id(native_variable(v)) for layer in kept for v in layer.variables}
    return everything - {id(native_variable(v)) for layer in kept for v in layer.weights}


# -- optimizers


@outside_of_regions
def read_optimizer(optimizer: Optimizer, model: Model) -> OptimizerState:
    """See ``Backend.read_optimizer``. The slots of one that has not been built are made.

    ``learning_rate`` is None where it is a schedule, which ``iterations`` decides.
    """
    slots = {name: _read(variable) for name, variable in _state(optimizer, model).items()}
    rate = slots.pop(_RATE, None)
    return OptimizerState(slots, {_RATE: None if rate is None else float(rate)})


@outside_of_regions
def write_optimizer(optimizer: Optimizer, model: Model, state: OptimizerState) -> None:
    """See ``Backend.write_optimizer``. Nothing is changed if it raises."""
    variables = _state(optimizer, model)
    rate = variables.pop(_RATE, None)
    _check_rate(state.settings.get(_RATE), rate, optimizer)
    if variables.keys() != state.slots.keys():
        absent, unknown = variables.keys() - state.slots, state.slots.keys() - variables
        msg = (
            f"The state is not of this {type(optimizer).__name__} and model: it lacks "
            f"{sorted(absent)[:4]} and has {sorted(unknown)[:4]} besides.\n"
            "Hint: make model and optimizer as they were when it was saved."
        )
        raise StateError(msg)
    for name, variable in variables.items():
        value, wanted = state.slots[name], (_file_dtype(variable), tuple(variable.shape))
        if (value.dtype, value.shape) != wanted:
            msg = (
                f"slot {name!r} is of dtype {value.dtype} and shape {value.shape}, not {wanted[0]} and "
                f"{wanted[1]}.\nHint: make model and optimizer as they were when it was saved."
            )
            raise StateError(msg)
    for name, variable in variables.items():
        variable.assign(state.slots[name].astype(variable.dtype.as_numpy_dtype))
    found = fitted.fitted(model)
    if found is not None:
        fitted.round_to_nearest(found.slots_of(optimizer), "bfloat16")
    if rate is not None:
        rate.assign(state.settings[_RATE])


_RATE = "learning_rate"


def _state(optimizer: Optimizer, model: Model) -> dict[str, tf.Variable]:
    """What changes in a step beside the weights.

    That is slots, counters, the rate, seed generators' states, and what the optimizer trains outside of
    the model.
    """
    held, random = all_variables(model), _random_states(model)
    built = built_optimizer(optimizer, parameters(model))
    own = [each.tensor for each in held]
    return {
        **_slots(built, model),
        **outside.among(map(native_variable, parameters(built)), own),
        **{f"random/{each.name}": each.tensor for each in held if id(each.tensor) in random},
    }


def _slots(optimizer: Any, model: Model) -> dict[str, tf.Variable]:
    """The variables of an optimizer by attribute; in a list of one for each parameter, by weight too.

    Raises:
        UnsupportedError: if it holds some in other ways.
    """
    names = _names_of(parameters(optimizer), model)
    slots = {
        attribute.lstrip("_"): native_variable(value)
        for attribute, value in vars(optimizer).items()
        if is_variable(value) and not _private.is_machinery(attribute)
    }
    for attribute, values in _private.slot_lists(optimizer).items():
        pairs, slot = zip(names, values, strict=True), attribute.lstrip("_")
        slots |= {f"{name}/{slot}": native_variable(v) for name, v in pairs if is_variable(v)}
    known = {id(variable) for variable in slots.values()}
    unknown = [v.path for v in optimizer.variables if id(native_variable(v)) not in known]
    if unknown:
        msg = (
            f"{type(optimizer).__name__} holds {len(unknown)} variables neither as attributes nor in "
            f"lists with one for each parameter, so what they mean is not known: {unknown[:4]}.\n"
            "Hint: self.momentums = self.add_optimizer_variables(variables, 'momentum')"
        )
        raise UnsupportedError(msg)
    return slots


def _names_of(variables: Sequence[Any], model: Model) -> list[str]:
    """The names of weights; a variable that is not the model's gets its place in the list."""
    names = {id(held.tensor): held.name for held in all_variables(model)}
    return [
        names.get(id(native_variable(variable)), outside.name_of(place))
        for place, variable in enumerate(variables)
    ]


# -- values


def _read(variable: tf.Variable) -> np.ndarray:
    """A copy in a dtype that NumPy knows: bfloat16 and the like, of Keras' own policies, in float32."""
    value = variable.read_value().numpy()
    return np.array(value, dtype=_file_dtype(variable))


def _file_dtype(variable: tf.Variable) -> np.dtype:
    dtype = np.dtype(variable.dtype.as_numpy_dtype)
    return np.dtype(np.float32) if dtype.kind == "V" else dtype


def _check_rate(saved: Any, rate: tf.Variable | None, optimizer: Any) -> None:
    is_number = (
        isinstance(saved, (int, float)) and not isinstance(saved, bool) and 0 <= saved < math.inf
    )
    if is_number == (rate is not None) and (is_number or saved is None):
        return
    present = "a schedule" if rate is None else "a number"
    msg = (
        f"The state's learning_rate={saved!r:.100} is for another {type(optimizer).__name__}: that of "
        f"this one is {present}.\nHint: None stands for a keras.optimizers.schedules object."
    )
    raise StateError(msg)
