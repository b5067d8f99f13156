"""Unscaling, clipping, the step that may be skipped, and the scaler's state in tf.Variables.

All of it works eagerly, in tf.function and under XLA. A traced step waits for no device; an eager
one does where it branches, in ``unscale``, ``step_unless`` and ``update``. None of it follows a region's
rules, in case the caller stands in one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from ampbridge.adapters.backend import FINITE, INF, NAN, Array, Optimizer, Scalar
from ampbridge.scaling.scale_rule import ScalerConfig, ScaleState, next_state
from ampbridge_tensorflow.autocast.regions import outside_of_regions
from ampbridge_tensorflow.fit.updates import scaled
from ampbridge_tensorflow.native_values import on_values, values_of
from ampbridge_tensorflow.step import ranks
from ampbridge_tensorflow.step.gradients import built_optimizer, checked_optimizer


@outside_of_regions
def unscale(grads: Sequence[Array], scale: Scalar) -> tuple[list[Array], Scalar]:
    """Divide by ``scale`` and look for inf and NaN; see ``Backend``.

    Dense gradients and IndexedSlices stay what they are, None stays None. On a replica of several
    they become the mean over all replicas before one looks.
    """
    unscaled = ranks.averaged(grads if scale is None else divided(grads, scale))
    return unscaled, _found([values_of(g) for g in unscaled if g is not None])


@outside_of_regions
def divided(grads: Sequence[Array], scale: Scalar) -> list[Array]:
    """Gradients divided by ``scale``, each replica's its own; in float32 or wider."""
    inverse = 1.0 / tf.convert_to_tensor(scale, tf.float32)
    return [on_values(g, lambda v: _full(v) * tf.cast(inverse, _full(v).dtype)) for g in grads]


def _found(values: Sequence[Array]) -> Scalar:
    """FINITE, INF or NAN as an int32 scalar."""
    if not values:
        return tf.constant(FINITE)
    # A sum of squares is one op, and finite only if all of its terms are. One that is not may have
    # overflowed by itself, beyond 1e19: then one looks at every number.
    squares = [tf.cast(tf.nn.l2_loss(_full(v)), tf.float32) for v in values]
    return tf.cond(
        tf.math.is_finite(tf.add_n(squares)), lambda: tf.constant(FINITE), lambda: kind_of(values)
    )


def kind_of(values: Sequence[Array]) -> Scalar:
    """FINITE, INF or NAN, number by number."""
    nan = tf.reduce_any(tf.stack([tf.reduce_any(tf.math.is_nan(v)) for v in values]))
    return tf.where(has_inf(values), INF, tf.where(nan, NAN, FINITE))


def has_inf(values: Sequence[Array]) -> Array:
    return tf.reduce_any(tf.stack([tf.reduce_any(tf.math.is_inf(v)) for v in values]))


@outside_of_regions
def worst(found: Sequence[Scalar]) -> Scalar:
    """See ``Backend.worst``."""
    stacked = tf.stack(list(found))
    kind = tf.where(tf.reduce_any(stacked == INF), INF, NAN)
    return tf.where(tf.reduce_any(stacked != FINITE), kind, FINITE)


@outside_of_regions
def clip(grads: Sequence[Array], max_norm: float) -> tuple[list[Array], Scalar]:
    """Scale ``grads`` to a joint 2-norm of at most ``max_norm``; the norm before, a float32 scalar."""
    grads = [_without_repeats(g) for g in grads]
    values = [_full(values_of(g)) for g in grads if g is not None]
    norm = tf.linalg.global_norm([tf.cast(v, tf.float32) for v in values]) if values else 0.0
    factor = max_norm / tf.maximum(norm, max_norm)
    return [on_values(g, lambda v: v * tf.cast(factor, v.dtype)) for g in grads], norm


@outside_of_regions
def clip_values(grads: Sequence[Array], limit: float) -> list[Array]:
    """See ``Backend.clip_values``."""
    clip = partial(tf.clip_by_value, clip_value_min=-limit, clip_value_max=limit)
    return [on_values(_without_repeats(g), clip) for g in grads]


def _without_repeats(gradient: Array | None) -> Array | None:
    """IndexedSlices with each row once, summed: the rows of a batch repeat, which a norm must see."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, where = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, where, tf.shape(rows)[0])
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _full(values: Array) -> Array:
    """``values`` in float32, or wider if they are."""
    values = tf.convert_to_tensor(values)
    return values if values.dtype in (tf.float32, tf.float64) else tf.cast(values, tf.float32)


@outside_of_regions
def step(optimizer: Optimizer, parameters: Sequence[Array], grads: Sequence[Array]) -> None:
    """See ``Backend.step``. Replicas average here what has not been through ``unscale``."""
    update, present = _update_by(optimizer, parameters, grads)
    present = ranks.averaged(present)
    # Without this a traced step sometimes updates a variable before a gradient has read it: nothing
    # else orders the two once Grappler has pruned (TensorFlow 2.21, also without ampbridge).
    with tf.control_dependencies([values_of(g) for g in present]):
        update(present)


@outside_of_regions
def step_unless(
    optimizer: Optimizer, parameters: Sequence[Array], grads: Sequence[Array], overflow: Scalar
) -> Scalar:
    """One ``tf.cond`` around ``optimizer.apply``; see ``Backend``. Eager, the answer is on the host.

    In a skipped step ``optimizer.iterations`` stands still, and with it any schedule.
    """
    update, present = _update_by(optimizer, parameters, grads)
    applied = ranks.step_if(tf.equal(overflow, FINITE), update, present)
    return bool(applied) if tf.executing_eagerly() else applied


def _update_by(
    optimizer: Optimizer, parameters: Sequence[Array], grads: Sequence[Array]
) -> tuple[Callable[[Sequence[Array]], None], list[Array]]:
    """``optimizer.apply`` to the parameters that have a gradient, and those gradients.

    Slots are made here: variables cannot be made in a branch.
    """
    ranks.check_scope(checked_optimizer(optimizer), parameters)
    optimizer = built_optimizer(optimizer, parameters)
    trained = [p for g, p in zip(grads, parameters, strict=True) if g is not None]

    @scaled
    @outside_of_regions
    def update(grads: Sequence[Array]) -> None:
        with ranks.gradients_are_reduced():
            optimizer.apply(grads, trained)

    return update, [g for g in grads if g is not None]


@outside_of_regions
def variable_store(state: ScaleState, strategy: ranks.Strategy | None = None) -> VariableStore:
    """A place for ``state``. Every replica of ``strategy`` has its own, and updates it as all do."""
    counts = [int(count) for count in state[1:]]
    # A scaler may be met first while a step is being traced.
    with ranks.variables_made_under(strategy):
        return VariableStore(
            tf.Variable(float(state.scale), dtype=tf.float32, trainable=False, name="loss_scale"),
            tf.Variable(counts, dtype=tf.int32, trainable=False, name="counts"),
        )


class VariableStore:
    """The scaler's state in tf.Variables: a traced step reads and writes them on the device.

    Two of them: the scale, float32, and the counters, int32; a small step notices each read. Both may
    be Keras' as well.
    """

    def __init__(self, scale: Any, counts: Any) -> None:
        self._scale, self._counts = scale, counts

    def read(self) -> ScaleState:
        return _state(tf.convert_to_tensor(self._scale), tf.convert_to_tensor(self._counts))

    def write(self, state: ScaleState) -> None:
        self._scale.assign(state.scale)
        self._counts.assign(state[1:])

    @outside_of_regions
    def update(self, overflow: Scalar, config: ScalerConfig) -> ScaleState:
        """Set the state to ``next_state``. Most of a finite step's is known when it is traced."""
        state = self.read()

        def after(overflow: Scalar) -> tuple[Array, Array]:
            scale, *counts = next_state(state, overflow, config, _where)
            return tf.convert_to_tensor(scale), tf.stack(counts)

        if isinstance(overflow, int):
            scale, counts = after(overflow)
        else:
            finite = tf.equal(overflow, FINITE)
            scale, counts = tf.cond(finite, lambda: after(FINITE), lambda: after(overflow))
        self._counts.assign(counts)
        if config.dynamic:
            self._scale.assign(scale)
        return _state(scale, counts)  # not read again: each step of Keras' ``fit`` would


def _state(scale: Array, counts: Array) -> ScaleState:
    return ScaleState(scale, *tf.unstack(counts, len(ScaleState._fields) - 1))


def _where(condition: Any, a: Any, b: Any) -> Any:
    """``tf.where``, or a Python choice if ``condition`` is known while a step is traced."""
    if isinstance(condition, bool):
        return a if condition else b
    return tf.where(condition, a, b)
