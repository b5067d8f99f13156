"""What the framework's objects are, and how a user makes them."""

from __future__ import annotations

import keras
import tensorflow as tf

from ampbridge.adapters.backend import Kind
from ampbridge.errors import UnsupportedError

EXAMPLES = {
    "model": "model = keras.Sequential([keras.layers.Dense(2)])",
    "optimizer": "optimizer = keras.optimizers.SGD(0.1); optimizer.build(model.trainable_variables)",
    "float32 model": "layers without dtype='float16', under keras.config.set_dtype_policy('float32')",
    "loss_fn": "def loss_fn(model, x, y): return criterion(y, model(x, training=True))",
}


def kind(obj: object) -> Kind | None:
    """See ``Backend.kind``. Models are keras.Model, keras.Layer and tf.Module."""
    if isinstance(obj, keras.optimizers.Optimizer):
        return "optimizer"
    if isinstance(obj, keras.losses.Loss):
        return "loss"
    if isinstance(obj, keras.optimizers.schedules.LearningRateSchedule):
        return "scheduler"
    return "model" if isinstance(obj, (keras.Layer, tf.Module)) else None


def check_keras_backend(what: str) -> None:
    """Refuse ``what``, a part of ``fit``, where Keras does not run on TensorFlow.

    Raises:
        UnsupportedError: for Keras on torch or JAX.
    """
    name = keras.config.backend()
    if name != "tensorflow":
        msg = f"{what} is for Keras on TensorFlow, and Keras runs on {name} here.\nHint: "
        here = "amp.train_step(loss_fn, model, torch.optim.SGD(model.parameters(), lr=0.1))"
        raise UnsupportedError(msg + (here if name == "torch" else "KERAS_BACKEND=tensorflow"))
