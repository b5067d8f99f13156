"""Training of Keras' models on JAX, by the loop of its guide: ``stateless_call``, ``stateless_apply``."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import jax
import keras
import numpy as np
from zoo import Framework, Run, Specimen, described, overflowing_at_first


class KerasOnJax(Framework):
    """See ``zoo.Framework``."""

    steps = 8
    compiled = True
    scaling: ClassVar = overflowing_at_first(backoff_factor=2.0**-6)

    def seed(self, number: int) -> None:
        """For layers that are made: they draw their own seeds."""
        random.seed(number)

    def optimizer(self, _: Specimen, model: keras.Model) -> keras.optimizers.Optimizer:
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)
        return optimizer

    def weights(self, model: keras.Model) -> dict[str, np.ndarray]:
        return {f"{n}/{v.name}": np.array(v.value) for n, v in enumerate(model.weights)}

    def trained(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> list[bytes]:
        variables = [*model.trainable_variables, *optimizer.variables]
        return [np.asarray(variable.value).tobytes() for variable in variables]

    def anatomy(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
        parts = [*model._flatten_layers(), *model.variables, optimizer]
        found = {str(number): described(part) for number, part in enumerate(parts)}
        for (
            _,
            _,
            attributes,
        ) in found.values():  # ampbridge meets a variable with one Variable of nnx
            attributes.pop("_ampbridge_held", None)
        return found

    def train(self, specimen: Specimen, dtype: str) -> Run:
        """In ``dtype`` by Keras' own mixed precision, without a scale."""
        keras.config.set_dtype_policy(dtype if dtype == "float32" else f"mixed_{dtype}")
        try:
            model = self.model(specimen)
        finally:
            keras.config.set_dtype_policy("float32")
        optimizer = self.optimizer(specimen, model)

        def loss_of(trained: Any, rest: Any, x: Any, y: Any) -> Any:
            def stateless(x: Any, training: bool) -> Any:
                nonlocal rest
                out, rest = model.stateless_call(trained, rest, x, training=training)
                return out

            return specimen.loss(stateless, x, y), rest

        @jax.jit
        def step(trained: Any, rest: Any, slots: Any, x: Any, y: Any) -> Any:
            (loss, rest), grads = jax.value_and_grad(loss_of, has_aux=True)(trained, rest, x, y)
            trained, slots = optimizer.stateless_apply(slots, grads, trained)
            return loss, trained, rest, slots

        parts = model.trainable_variables, model.non_trainable_variables, optimizer.variables
        state = [[variable.value for variable in part] for part in parts]
        losses = []
        for x, y in specimen.batches(self.steps):
            loss, *state = step(*state, x, y)
            losses.append(float(loss))
        for part, values in zip(parts, state, strict=True):
            for variable, value in zip(part, values, strict=True):
                variable.assign(value)
        return Run(losses, [1.0] * self.steps, self.weights(model))
