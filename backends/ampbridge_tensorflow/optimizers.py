"""Keras' optimizers by torch's formulas, for ``ampbridge.neutral``.

Three differences matter. Keras adds epsilon to the root of the average before its bias is corrected, so
that in the first steps it counts 30 times as much. It multiplies gradients by the rate before they enter
the momentum, so that a new rate acts late. And of an embedding whose row occurs several times in a batch
Adam averages the sum of the squares, where the square of the sum is meant (Keras 3.15).
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from ampbridge_tensorflow import _private


class _Adam:
    """The step that both of torch's Adams have in common."""

    iterations: Any
    epsilon: Any
    beta_1: float
    beta_2: float

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Keras' step with the rate and the epsilon that make it torch's.

        Keras computes ``1 - beta_2 ** step`` in float32, which at first has an error of 5e-5.
        """
        epsilon, dtype = self.epsilon, variable.dtype
        theirs = self._root(ops.cast(self.beta_2, dtype)) / self._bias(ops.cast(self.beta_1, dtype))
        first, second = (ops.convert_to_tensor(b, "float64") for b in (self.beta_1, self.beta_2))
        root = self._root(second)
        exact = root / self._bias(first)
        rate = ops.cast(learning_rate, dtype) * (ops.cast(exact, dtype) / theirs)
        self.epsilon = epsilon * ops.cast(root, dtype)
        try:
            super().update_step(tf.convert_to_tensor(gradient), variable, rate)  # type: ignore[misc]
        finally:
            self.epsilon = epsilon

    def _bias(self, beta: Any) -> Any:
        """``1 - beta ** step``, by which the averages are too small, in the dtype of ``beta``."""
        return 1 - ops.power(beta, ops.cast(self.iterations + 1, beta.dtype))

    def _root(self, beta: Any) -> Any:
        return ops.sqrt(self._bias(beta))


@keras.saving.register_keras_serializable("ampbridge")
class Adam(_Adam, keras.optimizers.Adam):
    """``torch.optim.Adam``."""


@keras.saving.register_keras_serializable("ampbridge")
class AdamW(_Adam, keras.optimizers.AdamW):
    """``torch.optim.AdamW``."""


@keras.saving.register_keras_serializable("ampbridge")
class SGD(keras.optimizers.SGD):
    """``torch.optim.SGD``: ``l2`` times the weights is added to the gradient."""

    def __init__(self, learning_rate: Any = 0.01, *, l2: float = 0.0, **settings: Any) -> None:
        super().__init__(learning_rate, **settings)
        self.l2 = l2

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "l2": self.l2}

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """The rate multiplies the momentum when it is applied."""
        dtype = variable.dtype
        gradient = ops.cast(tf.convert_to_tensor(gradient), dtype)
        if self.l2:
            gradient = ops.add(gradient, ops.multiply(variable, self.l2))
        if self.momentum:
            buffer = _private.slot_of(self, self.momentums, variable)
            self.assign(buffer, ops.add(ops.multiply(buffer, self.momentum), gradient))
            ahead = ops.multiply(buffer, self.momentum)
            gradient = ops.add(gradient, ahead) if self.nesterov else buffer
        self.assign_sub(variable, ops.multiply(gradient, ops.cast(learning_rate, dtype)))
