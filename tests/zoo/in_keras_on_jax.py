"""Training of Keras' models on JAX, by the loop of its guide: ``stateless_call``, ``stateless_apply``."""

from __future__ import annotations

from typing import Any

import jax
import keras
from in_keras import InKeras
from zoo import Run, Specimen


class KerasOnJax(InKeras):
    """See ``zoo.Framework``."""

    steps = 8
    compiled = True

    def anatomy(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
        found = super().anatomy(model, optimizer)
        for _, _, attributes in found.values():
            attributes.pop("_ampbridge_held", None)  # ampbridge meets a variable with one of nnx
        return found

    def train(self, specimen: Specimen, dtype: str) -> Run:
        """In ``dtype`` by Keras' own mixed precision, without a scale."""
        model = self.model_in(specimen, dtype)
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
