"""Unscaling, clipping, the step that may be skipped, and the scaler's state in tf.Variables.

All of it works eagerly, in tf.function and under XLA. A traced step waits for no device; an eager
one does where it branches, in ``unscale`` and ``apply``. None of it follows a region's rules, in case
the caller stands in one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import tensorflow as tf

from ampbridge.backend import FINITE, INF, NAN, Array, Optimizer, Scalar
from ampbridge.scale_rule import ScalerConfig, ScaleState, next_state
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.casting import regions
from ampbridge_tensorflow.gradients import checked_optimizer

P = ParamSpec("P")
R = TypeVar("R")


def outside_of_regions(function: Callable[P, R]) -> Callable[P, R]:
    """``function`` in plain TensorFlow, whatever region its caller stands in."""

    @wraps(function)
    def plain(*args: P.args, **kwargs: P.kwargs) -> R:
        with regions.paused(None):
            return function(*args, **kwargs)

    return plain


@outside_of_regions
def unscale(grads: Sequence[Array], scale: Scalar) -> tuple[list[Array], Scalar]:
    """Divide by ``scale`` and look for inf and NaN; see ``Backend``.

    Dense gradients and IndexedSlices stay what they are, None stays None.
    """
    if scale is None:
        return list(grads), _found([_values(g) for g in grads if g is not None])
    inverse = 1.0 / tf.convert_to_tensor(scale, tf.float32)
    unscaled = [_on_values(g, lambda v: _full(v) * tf.cast(inverse, _full(v).dtype)) for g in grads]
    return unscaled, _found([_values(g) for g in unscaled if g is not None])


def _found(values: Sequence[Array]) -> Scalar:
    """FINITE, INF or NAN as an int32 scalar."""
    if not values:
        return tf.constant(FINITE)
    finite = tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(v)) for v in values]))

    def kind() -> Array:
        infinite = tf.reduce_any(tf.stack([tf.reduce_any(tf.math.is_inf(v)) for v in values]))
        return tf.where(infinite, INF, NAN)

    return tf.cond(finite, lambda: tf.constant(FINITE), kind)


@outside_of_regions
def clip(grads: Sequence[Array], max_norm: float) -> tuple[list[Array], Scalar]:
    """Scale ``grads`` to a joint 2-norm of at most ``max_norm``; the norm before, a float32 scalar."""
    grads = [_without_repeats(g) for g in grads]
    values = [_full(_values(g)) for g in grads if g is not None]
    norm = tf.linalg.global_norm([tf.cast(v, tf.float32) for v in values]) if values else 0.0
    factor = max_norm / tf.maximum(norm, max_norm)
    return [_on_values(g, lambda v: v * tf.cast(factor, v.dtype)) for g in grads], norm


def _without_repeats(gradient: Array | None) -> Array | None:
    """IndexedSlices with each row once, summed: the rows of a batch repeat, which a norm must see."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, where = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, where, tf.shape(rows)[0])
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _values(gradient: Array) -> Array:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _on_values(gradient: Array | None, function: Callable[[Array], Array]) -> Array | None:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = function(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return function(gradient)


def _full(values: Array) -> Array:
    """float32 or wider."""
    values = tf.convert_to_tensor(values)
    return values if values.dtype in (tf.float32, tf.float64) else tf.cast(values, tf.float32)


@outside_of_regions
def apply(
    optimizer: Optimizer, parameters: Sequence[Array], grads: Sequence[Array], found: Scalar
) -> Scalar:
    """One ``tf.cond`` around ``optimizer.apply``; see ``Backend``.

    Slots are made before it: variables cannot be made in a branch. Parameters without a gradient
    are left out. In a skipped step ``optimizer.iterations`` stands still, and with it any schedule.
    """
    optimizer = built_optimizer(optimizer, parameters)
    pairs = [(g, p) for g, p in zip(grads, parameters, strict=True) if g is not None]

    def step() -> Array:
        optimizer.apply([g for g, _ in pairs], [p for _, p in pairs])
        return tf.constant(True)

    if found is None:
        # Without this a traced step sometimes updates a variable before a gradient has read it: nothing
        # else orders the two once Grappler has pruned (TensorFlow 2.21, also without ampbridge).
        with tf.control_dependencies([_values(g) for g, _ in pairs]):
            return step()
    return tf.cond(tf.equal(found, FINITE), step, lambda: tf.constant(False))


def built_optimizer(optimizer: Optimizer, parameters: Sequence[Array]) -> Any:
    """A checked Keras optimizer with its slots, made for ``parameters`` if it has none.

    The trace that it is met in first does not see them made: tf.function would trace once more. Under
    a strategy of TensorFlow's it does, since that has its own way to make variables.
    """
    optimizer = checked_optimizer(optimizer)
    if not optimizer.built:
        unseen = None if tf.distribute.has_strategy() else _private.value(_private.EAGER_MODE)
        with tf.init_scope(), ExitStack() as stack:
            if unseen is not None:
                stack.enter_context(tf.Graph().as_default())
                stack.enter_context(unseen())
            optimizer.build(list(parameters))
    return optimizer


class VariableStore:
    """The scaler's state in tf.Variables: a traced step reads and writes them on the device.

    Two of them: the scale, float32, and the three counters, int32; a small step notices each read.
    """

    @outside_of_regions
    def __init__(self, state: ScaleState) -> None:
        with tf.init_scope():  # a scaler may be met first while a step is being traced
            self._scale = tf.Variable(
                float(state.scale), dtype=tf.float32, trainable=False, name="loss_scale"
            )
            counts = [int(count) for count in state[1:]]
            self._counts = tf.Variable(counts, dtype=tf.int32, trainable=False, name="counts")

    def read(self) -> ScaleState:
        """The state as tensors."""
        return ScaleState(self._scale.read_value(), *tf.unstack(self._counts.read_value()))

    def write(self, state: ScaleState) -> None:
        """Set the variables, from Python numbers or tensors."""
        self._scale.assign(state.scale)
        self._counts.assign(state[1:])

    @outside_of_regions
    def update(self, found: Scalar, config: ScalerConfig) -> None:
        """State <- next_state(state, found), without a branch."""
        self.write(next_state(self.read(), tf.convert_to_tensor(found), config, tf.where))
