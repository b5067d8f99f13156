"""Training in TensorFlow, by the loop of Keras' guides: its dtype policies, its LossScaleOptimizer."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from in_keras import InKeras
from zoo import Run, Specimen


class Tensorflow(InKeras):
    """See ``zoo.Framework``."""

    steps = 4

    def train(self, specimen: Specimen, dtype: str) -> Run:
        model = self.model_in(specimen, dtype)
        inner = self.optimizer(specimen, model)
        optimizer = self._scaling(inner, model) if dtype == "float16" else inner
        losses, scales = [], []
        for number, batch in enumerate(specimen.batches(self.steps)):
            self.seed(number)
            scale = float(optimizer.dynamic_scale) if dtype == "float16" else 1.0
            with tf.GradientTape() as tape:
                loss = specimen.loss(model, *map(tf.convert_to_tensor, batch))
                scaled = optimizer.scale_loss(loss)
            grads = tape.gradient(scaled, [v.value for v in model.trainable_variables])
            optimizer.apply(grads, model.trainable_variables)
            if dtype == "float16" and float(optimizer.dynamic_scale) < scale:  # by half
                optimizer.dynamic_scale.assign(scale * self.scaling["backoff_factor"])
            losses.append(float(loss))
            scales.append(scale)
        return Run(losses, scales, self.weights(model))

    def _scaling(self, inner: keras.optimizers.Optimizer, model: keras.Model) -> Any:
        scaled = keras.optimizers.LossScaleOptimizer(
            inner, self.scaling["init_scale"], self.scaling["growth_interval"]
        )
        scaled.build(model.trainable_variables)
        return scaled
