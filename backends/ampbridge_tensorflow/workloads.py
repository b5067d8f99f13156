"""The workloads in TensorFlow, with Keras layers.

Keras puts channels last; the images arrive channels first and are turned around inside the model.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from ampbridge.workloads.weights import HEADS, WIDTH, Weights


def mlp(weights: Weights) -> keras.Model:
    """Two hidden layers over the 64 pixels."""
    return built(
        keras.Sequential(
            [
                keras.Input((1, 8, 8)),
                layers.Flatten(),
                layers.Dense(128, activation="gelu", name="hidden1"),
                layers.Dense(64, activation="gelu", name="hidden2"),
                layers.Dense(10, name="head"),
            ]
        ),
        weights,
    )


def conv(weights: Weights) -> keras.Model:
    """Two convolutions with batch norm, the second of stride 2."""
    return built(
        keras.Sequential(
            [
                keras.Input((1, 8, 8)),
                layers.Permute((2, 3, 1)),
                layers.Conv2D(8, 3, padding="same", use_bias=False, name="conv1"),
                layers.BatchNormalization(momentum=0.9, epsilon=1e-5),
                layers.Activation("gelu"),
                layers.Conv2D(16, 3, strides=2, use_bias=False, name="conv2"),
                layers.BatchNormalization(momentum=0.9, epsilon=1e-5),
                layers.Activation("gelu"),
                layers.Permute((3, 1, 2)),
                layers.Flatten(),
                layers.Dense(10, name="head"),
            ]
        ),
        weights,
    )


def transformer(weights: Weights) -> keras.Model:
    """One pre-norm encoder block over 16 tokens, then their mean."""
    vocabulary, width = weights["embedding"].shape
    tokens = keras.Input((16,), dtype="int64")
    x = layers.Embedding(vocabulary, width, name="embedding")(tokens)
    y = layers.LayerNormalization(epsilon=1e-5)(x)
    attention = layers.MultiHeadAttention(HEADS, width // HEADS, name="attention")
    x = x + attention(y, y)
    y = layers.LayerNormalization(epsilon=1e-5)(x)
    y = layers.Dense(2 * width, name="widen")(y)
    y = layers.Dense(width, name="narrow")(keras.ops.gelu(y, approximate=False))
    x = x + y
    y = layers.LayerNormalization(epsilon=1e-5)(keras.ops.mean(x, axis=1))
    return built(keras.Model(tokens, layers.Dense(10, name="head")(y)), weights)


def optimizer(model: keras.Model, learning_rate: float = 0.1) -> keras.optimizers.Optimizer:
    del model  # a Keras optimizer meets its variables at the first step
    return keras.optimizers.SGD(learning_rate, momentum=0.9)


def loss(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, model(x, training=True))


def predict(model: keras.Model, x: np.ndarray) -> np.ndarray:
    """The most likely class of each input, with batch norm's running statistics."""
    classes: np.ndarray = np.argmax(model(x, training=False), axis=1)
    return classes


def built(model: keras.Model, weights: Weights) -> keras.Model:
    """``model`` with the weights of each layer that has any, by the layer's name."""
    for layer in model.layers:
        name = layer.name
        if name == "embedding":
            layer.set_weights([weights[name]])
        elif name == "attention":
            layer.set_weights(attention_weights(weights))
        elif name.startswith("conv"):
            layer.set_weights([weights[f"{name}.weight"].transpose(2, 3, 1, 0)])
        elif f"{name}.weight" in weights:
            layer.set_weights([weights[f"{name}.weight"], weights[f"{name}.bias"]])
    return model


def attention_weights(weights: Weights) -> list[np.ndarray]:
    """Keras keeps heads apart: (width, heads, size) for the inputs, (heads, size, width) after."""
    heads = (HEADS, WIDTH // HEADS)
    values: list[np.ndarray] = []
    for name in ("query", "key", "value"):
        values.append(weights[f"{name}.weight"].reshape(WIDTH, *heads))
        values.append(weights[f"{name}.bias"].reshape(heads))
    values.append(weights["output.weight"].reshape(*heads, WIDTH))
    return [*values, weights["output.bias"]]
