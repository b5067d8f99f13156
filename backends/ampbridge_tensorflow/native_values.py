"""TensorFlow's values behind those that Keras and tf.GradientTape hand out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ampbridge.adapters import low_storage
from ampbridge.adapters.backend import Array
from ampbridge_tensorflow import _private


def is_variable(value: Any) -> bool:
    """Whether it is a variable, TensorFlow's or Keras'."""
    return isinstance(value, tf.Variable) or _private.is_keras_variable(value)


def is_symbolic(structure: Any) -> bool:
    """Whether a KerasTensor is among the values: a functional model is being made."""
    return any(isinstance(value, keras.KerasTensor) for value in tf.nest.flatten(structure))


def with_tensors(value: Any, is_read: Callable[[Any], bool]) -> Any:
    """``value`` with a tensor for each variable that ``is_read``, also in a list."""
    if isinstance(value, (list, tuple)):
        return [with_tensors(x, is_read) for x in value] if any(map(is_read, value)) else value
    return tf.convert_to_tensor(value) if is_read(value) else value


def native_variable(parameter: Any) -> tf.Variable:
    """The tf.Variable in a Keras variable."""
    return parameter.value if _private.is_keras_variable(parameter) else parameter


def moments(optimizer: Any) -> dict[int, list[Any]]:
    """The float32 moments of each parameter of a Keras optimizer, by the id of its variable."""
    found = {}
    wrapped = getattr(optimizer, "inner_optimizer", optimizer)
    for each in getattr(optimizer, "optimizers", [wrapped]):
        lists = _private.slot_lists(each).items()
        kinds = [slots for attribute, slots in lists if attribute not in _private.NO_MOMENTS]
        for parameter, *slots in zip(
            _private.optimizer_parameters(each) or (), *kinds, strict=True
        ):
            found[id(native_variable(parameter))] = [
                slot
                for slot in slots
                if is_variable(slot)
                and slot.dtype == "float32"
                and low_storage.is_moment(slot, parameter)
            ]
    return found


def copies(variable: tf.Variable) -> tuple[tf.Variable, ...]:
    """What a variable consists of: itself, or under a strategy one for each of its devices."""
    strategy = made_under(variable)
    return (variable,) if strategy is None else strategy.experimental_local_results(variable)


def made_under(variable: Any) -> tf.distribute.Strategy | None:
    """The strategy in whose scope a variable was made."""
    return getattr(native_variable(variable), "distribute_strategy", None)


def values_of(gradient: Array) -> Array:
    """The values of a gradient, dense or IndexedSlices."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def rounded_to(dtype: str, values: Array) -> Array:
    """The tensor ``values`` rounded to ``dtype``, in its own."""
    return tf.cast(tf.cast(values, dtype), values.dtype)


def rounded_by_chance(values: Array, seed: Array) -> Array:
    """Each of the float32 ``values`` as a bfloat16 next to it; ``seed`` gives the same on all devices."""
    draws = tf.random.stateless_uniform(tf.shape(values), seed, 0, 0x10000, tf.int32, alg="philox")
    bits = low_storage.rounded_by_chance(tf.bitcast(values, tf.int32), draws, tf.where)
    return tf.bitcast(bits, tf.float32)


def on_values(gradient: Array | None, function: Callable[[Array], Array]) -> Array | None:
    """``function`` of a gradient's values; dense gradients and IndexedSlices stay what they are."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = function(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return function(gradient)
