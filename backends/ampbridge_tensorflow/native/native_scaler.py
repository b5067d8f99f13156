"""Keras' ``LossScaleOptimizer``, from our scaler and to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from ampbridge.adapters.backend import Optimizer
from ampbridge.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from ampbridge_tensorflow.autocast.regions import outside_of_regions
from ampbridge_tensorflow.fit.loss_scale_optimizer import LossScaleOptimizer
from ampbridge_tensorflow.step.gradients import checked_optimizer, parameters


@outside_of_regions
def native_scaler(
    state: Mapping[str, Any], optimizer: Optimizer | None
) -> keras.optimizers.LossScaleOptimizer:
    """See ``Backend.native_scaler``.

    Raises:
        ArgumentError: without an optimizer; or with one that has not been built, if finite steps have
            been counted: Keras keeps the count in a variable that it makes when it is built.
        UnsupportedError: for a disabled scaler.
    """
    if not state["enabled"]:
        msg = "Keras' LossScaleOptimizer cannot be disabled.\nHint: use the optimizer itself."
        raise UnsupportedError(msg)
    if optimizer is None:
        msg = "Keras' LossScaleOptimizer wraps an optimizer, and none was given.\n"
        hint = "Hint: scaler.to_native('tensorflow', optimizer=keras.optimizers.Adam())"
        raise ArgumentError(msg + hint)
    inner = checked_optimizer(optimizer)
    finite_steps = max(state["good_steps"], 0)
    if finite_steps and not inner.built:
        msg = (
            f"{finite_steps} finite steps have been counted, and Keras has no place for them before "
            f"{type(inner).__name__} has been built.\nHint: optimizer.build(model.trainable_variables)"
        )
        raise ArgumentError(msg)
    native = keras.optimizers.LossScaleOptimizer(
        inner, initial_scale=state["scale"], dynamic_growth_steps=state["growth_interval"]
    )
    if inner.built:
        native.build(parameters(inner))
        native.step_counter.assign(finite_steps)
    return native


def native_scaler_state(scaler: Any) -> Mapping[str, Any]:
    """See ``Backend.native_scaler_state``. Ours is read as what it is."""
    if isinstance(scaler, LossScaleOptimizer):
        return scaler.scaler.state_dict()
    if not isinstance(scaler, keras.optimizers.LossScaleOptimizer):
        msg = f"A scaler of Keras is a LossScaleOptimizer, not {type(scaler).__name__}.\n"
        hint = "Hint: GradScaler.from_native(keras.optimizers.LossScaleOptimizer(optimizer))"
        raise ArgumentTypeError(msg + hint)
    scale, count = scaler.initial_scale, 0
    if scaler.built:
        scale, count = float(scaler.dynamic_scale.numpy()), int(scaler.step_counter.numpy())
    return {
        "dynamic_scale": scale,
        "step_counter": count,
        "dynamic_growth_steps": scaler.dynamic_growth_steps,
    }
