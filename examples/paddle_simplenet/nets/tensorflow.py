"""SimpleNet in TensorFlow, with Keras layers."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def simplenet(weights: Sequence[np.ndarray]) -> keras.Model:
    model = keras.Sequential([keras.Input(weights[0].shape[:1])])
    for index, weight in enumerate(weights, start=1):
        activation = "relu" if index < len(weights) else None
        model.add(layers.Dense(weight.shape[1], activation=activation))  # its bias is zero
        model.layers[-1].kernel.assign(weight)
    return model


def optimizer(model: keras.Model, learning_rate: float) -> keras.optimizers.Optimizer:
    del model  # a Keras optimizer meets its variables at the first step
    return keras.optimizers.SGD(learning_rate)


def loss(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return keras.losses.MeanSquaredError()(y, model(x, training=True))


def tensor(array: np.ndarray) -> tf.Tensor:
    return tf.constant(array)


def device() -> str:
    gpus = tf.config.list_physical_devices("GPU")
    return tf.config.experimental.get_device_details(gpus[0])["device_name"] if gpus else "a CPU"


def wait() -> None:
    tf.test.experimental.sync_devices()
