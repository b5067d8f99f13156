"""The classifier in TensorFlow, with Keras layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import ampbridge as amp
from ampbridge_tensorflow import LossScaleOptimizer

if TYPE_CHECKING:
    from guide import Report, Task


def classifier(weights: Mapping[str, np.ndarray]) -> keras.Model:
    inputs, units = weights["dense_1"].shape
    x = pixels = keras.Input((inputs,), name="digits")
    x = layers.Dense(units, activation="relu", name="dense_1")(x)
    x = layers.Dense(units, activation="relu", name="dense_2")(x)
    x = layers.Dense(10, name="dense_logits")(x)
    x = layers.Activation("softmax", name="predictions")(x)
    model = keras.Model(pixels, x)
    for name, weight in weights.items():
        model.get_layer(name).kernel.assign(weight)  # biases are zero
    return model


def optimizer(model: keras.Model) -> keras.optimizers.Optimizer:
    del model  # a Keras optimizer meets its variables at the first step
    return keras.optimizers.RMSprop(1e-3)


def loss(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return keras.losses.SparseCategoricalCrossentropy()(y, model(x, training=True))


def predict(model: keras.Model, x: np.ndarray) -> np.ndarray:
    return model(x, training=False).numpy()


def fit(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, task: Task, report: Report
) -> None:
    """Keras' ``Model.fit``."""
    scaler = amp.GradScaler(task.init_scale) if task.policy.needs_scaling else None
    if scaler is not None:
        optimizer = LossScaleOptimizer(optimizer, scaler)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])

    def on_epoch_end(epoch: int, logs: dict[str, float]) -> None:
        report(logs["loss"], logs["val_accuracy"], scaler.get_scale() if scaler else 1.0)

    keras.utils.set_random_seed(0)
    model.fit(
        *task.training,
        validation_data=task.held_out,
        batch_size=task.batch_size,
        epochs=task.epochs,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)],
    )
