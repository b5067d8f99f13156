"""Keras' own mixed precision: a dtype policy and its optimizer, in the loop of its guide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ampbridge.training.recipe import Recipe
from ampbridge.workloads import Workload
from ampbridge_compare.native import NativeStep, left_out


class NativeLoop:
    """``mixed_float16`` while the model is built, and a ``LossScaleOptimizer``; at O0 neither.

    The dtype policy is Keras' global one: a process for each loop.
    """

    def __init__(self, build: Callable[[], Workload], recipe: Recipe) -> None:
        policy, scaling = recipe.policy, recipe.scaler
        name = "float32" if policy.level == "O0" else f"mixed_{policy.dtype}"
        keras.config.set_dtype_policy(name)
        self.workload = build()
        self._optimizer = self.workload.optimizer
        self._scaled = scaling is not None
        if scaling is not None:
            self._optimizer = keras.optimizers.LossScaleOptimizer(
                self._optimizer,
                initial_scale=scaling.init_scale,
                dynamic_growth_steps=scaling.growth_interval,
            )
        self._optimizer.build(self.workload.model.trainable_variables)
        self._compiled = tf.function(self._step)
        self.execution = "none" if policy.level == "O0" else "native"
        self.described = f"the dtype policy {name!r}" + (
            " and keras.optimizers.LossScaleOptimizer" if self._scaled else ""
        )
        self.notes = left_out(recipe, ["scaler.growth_factor", "scaler.backoff_factor"])
        if policy.level != "O0":
            self.notes.append("Keras casts by layers, not by ops: a layer is low as a whole.")

    def gradients(self, batch: Sequence[Any], scale: float) -> list[np.ndarray]:
        with tf.GradientTape() as tape:
            target = self._loss([tf.convert_to_tensor(each) for each in batch]) * scale
        gradients = tape.gradient(target, self.workload.model.trainable_variables)
        return [tf.convert_to_tensor(each).numpy().astype(np.float32) for each in gradients]

    def step(self, batch: Sequence[Any]) -> NativeStep:
        scale = self._scale()
        loss = self._compiled([tf.convert_to_tensor(each) for each in batch])
        return NativeStep(float(loss), scale, applied=self._scale() >= scale)

    def _step(self, batch: list[tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self._loss(batch)
            target = self._optimizer.scale_loss(loss) if self._scaled else loss
        gradients = tape.gradient(target, self.workload.model.trainable_variables)
        self._optimizer.apply(gradients, self.workload.model.trainable_variables)
        return loss

    def _loss(self, batch: list[tf.Tensor]) -> tf.Tensor:
        return self.workload.loss_fn(self.workload.model, *batch)

    def _scale(self) -> float:
        return float(self._optimizer.dynamic_scale) if self._scaled else 1.0
