"""Keras' model.optimizer is None before compile."""

import keras
keras.mixed_precision.set_global_policy("mixed_float16")
model = keras.Sequential([keras.layers.Dense(3)])
if model.optimizer is None:
    model.compile(optimizer="sgd", loss="mse")
model.fit(x, y)
