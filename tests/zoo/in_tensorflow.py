"""Training in TensorFlow, by the loop of Keras' guides: its dtype policies, its LossScaleOptimizer."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from zoo import Framework, Run, Specimen, described, overflowing_at_first


class Tensorflow(Framework):
    """See ``zoo.Framework``."""

    steps = 4
    scaling: ClassVar = overflowing_at_first(backoff_factor=2.0**-6)

    def seed(self, number: int) -> None:
        """For layers that are made: they draw their own seeds; dropout goes on by such a one.

        ``tf.random.set_seed`` would also clear TensorFlow's caches of kernels.
        """
        random.seed(number)

    def optimizer(self, _: Specimen, model: keras.Model) -> keras.optimizers.Optimizer:
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)
        return optimizer

    def weights(self, model: keras.Model) -> dict[str, np.ndarray]:
        return {f"{n}/{v.name}": v.numpy() for n, v in enumerate(model.weights)}

    def trained(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> list[bytes]:
        variables = [*model.trainable_variables, *optimizer.variables]
        return [variable.numpy().tobytes() for variable in variables]

    def anatomy(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
        parts = [*model._flatten_layers(), *model.variables, optimizer]
        return {str(number): described(part) for number, part in enumerate(parts)}

    def train(self, specimen: Specimen, dtype: str) -> Run:
        keras.config.set_dtype_policy(dtype if dtype == "float32" else f"mixed_{dtype}")
        try:
            model = self.model(specimen)
        finally:
            keras.config.set_dtype_policy("float32")
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
