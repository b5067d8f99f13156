"""Parameters, and gradients with respect to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ampbridge.backend import Array, LossFn, Model, Optimizer, Scalar
from ampbridge.errors import ArgumentTypeError, CallOrderError, UnsupportedError
from ampbridge.policy import Policy
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.casting import autocast, differentiation
from ampbridge_tensorflow.fitted import low_variables
from ampbridge_tensorflow.native_values import native_variable, on_values


def cast(x: Array, dtype: str) -> Array:
    """``x`` in ``dtype``; float64 and what is not floating point as it is. Differentiable."""
    x = tf.convert_to_tensor(x)
    wanted = tf.as_dtype(dtype)
    keeps = not x.dtype.is_floating or x.dtype == tf.float64 or x.dtype == wanted
    return x if keeps else tf.cast(x, wanted)


def parameters(owner: Model | Optimizer) -> list[Array]:
    """A model's trainable variables, or those that a Keras optimizer was built for.

    Raises:
        CallOrderError: for an optimizer that has not been built.
        ArgumentTypeError: for what is neither a model nor an optimizer.
    """
    if isinstance(owner, keras.optimizers.Optimizer):
        found = _private.optimizer_parameters(checked_optimizer(owner))
        if found is not None:
            return found
        msg = (
            f"{type(owner).__name__} has not been built, so its parameters are not known.\n"
            "Hint: optimizer.build(model.trainable_variables)"
        )
        raise CallOrderError(msg)
    variables = getattr(owner, "trainable_variables", None)
    if variables is None:
        msg = (
            f"A model is a keras.Model or a tf.Module, not {type(owner).__name__}: it has no "
            "trainable_variables.\nHint: class Model(tf.Module): ..."
        )
        raise ArgumentTypeError(msg)
    return list(variables)


def checked_optimizer(optimizer: Optimizer) -> Any:
    """``optimizer``, if it is a Keras optimizer that does not scale by itself.

    Raises:
        ArgumentTypeError: if not.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        msg = (
            "A LossScaleOptimizer divides gradients by a scale of its own; GradScaler has done so.\n"
            "Hint: optimizer = optimizer.inner_optimizer"
        )
        raise ArgumentTypeError(msg)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        msg = (
            f"An optimizer is a keras.optimizers.Optimizer, not {type(optimizer).__name__}.\n"
            "Hint: optimizer = keras.optimizers.SGD(0.1)"
        )
        raise ArgumentTypeError(msg)
    return optimizer


def gradients(
    loss_fn: LossFn,
    model: Model,
    batch: Sequence[Any],
    policy: Policy,
    factor: Scalar,
    total: Sequence[Array] | None,
) -> tuple[Array, Any, list[Array]]:
    """Run ``loss_fn`` under ``policy`` and differentiate ``factor * loss``; see ``Backend``."""
    batch = native_batch(batch)
    with differentiation(policy):
        with tf.GradientTape() as tape:
            with autocast(policy):
                loss, aux = loss_fn(model, *batch)
            loss = cast(loss, "float32")
            scaled = loss if factor is None else loss * tf.cast(factor, loss.dtype)
        trained = parameters(model)
        grads = tape.gradient(scaled, [native_variable(p) for p in trained])
    low = {id(variable) for variable in low_variables(model)}
    grads = [
        _rounded(g, policy.dtype) if id(p) in low else g
        for p, g in zip(trained, grads, strict=True)
    ]
    if total is not None:
        grads = add(total, grads)
    return tf.stop_gradient(loss), aux, grads


def _rounded(gradient: Array | None, dtype: str) -> Array | None:
    """A gradient of a low-precision parameter, which has that precision: its parts were added up."""
    return on_values(gradient, lambda values: tf.cast(tf.cast(values, dtype), values.dtype))


def native_batch(batch: Sequence[Any]) -> tuple[Any, ...]:
    """``batch`` with NumPy arrays as tensors, those of float64 in Keras' floatx.

    So does ``Model.fit``. A tensor in place of an array also keeps a traced step from being traced
    anew for each value.
    """
    return tuple(_native(item) for item in batch)


def _native(item: Any) -> Any:
    if tf.is_tensor(item):
        return item
    if isinstance(item, (np.ndarray, np.generic)):
        dtype = keras.config.floatx() if item.dtype == np.float64 else None
        return tf.convert_to_tensor(item, dtype=dtype)
    if isinstance(item, (dict, list, tuple)):
        return tf.nest.map_structure(_native_leaf, item)
    return item


def _native_leaf(item: Any) -> Any:
    return _native(item) if isinstance(item, (np.ndarray, np.generic)) else item


def add(total: Sequence[Array], grads: Sequence[Array]) -> list[Array]:
    """See ``Backend.add``."""
    return [_sum(earlier, new) for earlier, new in zip(total, grads, strict=True)]


def _sum(total: Array | None, new: Array | None) -> Array | None:
    """Both gradients; sparse ones become dense, so that a sum keeps its shape from step to step."""
    if total is None or new is None:
        return new if total is None else total
    return tf.convert_to_tensor(total) + tf.convert_to_tensor(new)


def stored_gradients(optimizer: Optimizer) -> list[Array]:
    """Refused: TensorFlow hands gradients to the caller.

    Raises:
        UnsupportedError: always.
    """
    msg = (
        f"TensorFlow keeps no gradients beside the parameters of {type(optimizer).__name__}.\n"
        "Hint: loss, grads = amp.value_and_grad(loss_fn, model, x, y, scaler=scaler); "
        "scaler.step(optimizer, grads)"
    )
    raise UnsupportedError(msg)
