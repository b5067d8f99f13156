"""What training Keras' models has alike on TensorFlow and JAX."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import keras
import numpy as np
from zoo import Framework, Specimen, described, overflowing_at_first


class InKeras(Framework):
    """See ``zoo.Framework``; Keras runs on the framework of the process."""

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
        return {f"{n}/{v.name}": np.array(v.numpy()) for n, v in enumerate(model.weights)}

    def trained(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> list[bytes]:
        variables = [*model.trainable_variables, *optimizer.variables]
        return [variable.numpy().tobytes() for variable in variables]

    def anatomy(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
        parts = [*model._flatten_layers(), *model.variables, optimizer]
        return {str(number): described(part) for number, part in enumerate(parts)}

    def model_in(self, specimen: Specimen, dtype: str) -> keras.Model:
        """A model that computes in ``dtype`` by Keras' own policy."""
        keras.config.set_dtype_policy(dtype if dtype == "float32" else f"mixed_{dtype}")
        try:
            return self.model(specimen)
        finally:
            keras.config.set_dtype_policy("float32")
