"""The part of ``ampbridge.neutral`` that needs TensorFlow; see ``ampbridge.neutral.native.Native``.

Keras puts channels last; images arrive channels first and are turned around inside the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from ampbridge.neutral.native import Native
from ampbridge.neutral.weights import BLOCK, Weights, numbered
from ampbridge_tensorflow.optimizers import SGD, Adam, AdamW
from ampbridge_tensorflow.step.gradients import native_array, parameters

INTEGERS = (tf.int32, tf.int64)  # the labels that TensorFlow's cross entropy takes


@keras.saving.register_keras_serializable("ampbridge")
class Positions(layers.Layer):
    """Adds a learned vector for each position to (batch, length, width)."""

    def __init__(self, length: int, **options: Any) -> None:
        super().__init__(**options)
        self.length = length

    def build(self, shape: Sequence[int | None]) -> None:
        self.positions = self.add_weight(shape=(self.length, shape[-1]), name="positions")

    def call(self, x: Any) -> Any:
        return x + self.positions

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "length": self.length}


def head(weights: Weights) -> layers.Layer:
    return layers.Dense(weights["head.weight"].shape[1], name="head")


def filled(model: keras.Model, weights: Weights) -> keras.Model:
    """``model`` with the weights of each layer that has any, by the layer's name."""
    for layer in model.layers:
        name = layer.name
        if isinstance(layer, layers.MultiHeadAttention):
            layer.set_weights(attention_weights(weights, layer))
        elif isinstance(layer, layers.Conv2D):
            layer.set_weights([weights[f"{name}.weight"].transpose(2, 3, 1, 0)])
        elif isinstance(layer, layers.Dense):
            layer.set_weights([weights[f"{name}.weight"], weights[f"{name}.bias"]])
        elif name in weights:
            layer.set_weights([weights[name]])
    return model


def attention_weights(weights: Weights, layer: layers.MultiHeadAttention) -> list[np.ndarray]:
    """Keras keeps heads apart: (width, heads, size) for the inputs, (heads, size, width) after."""
    number, heads = layer.name.removeprefix("attention"), (layer.num_heads, layer.key_dim)
    values: list[np.ndarray] = []
    for name in BLOCK[:3]:
        weight, bias = (weights[f"{name}{number}.{part}"] for part in ("weight", "bias"))
        values += [weight.reshape(-1, *heads), bias.reshape(heads)]
    weight = weights[f"output{number}.weight"]
    return [*values, weight.reshape(*heads, -1), weights[f"output{number}.bias"]]


def _call(model: Any, inputs: Sequence[Any], training: bool) -> Any:
    """A tf.Module has no mode."""
    mode = {"training": training} if isinstance(model, keras.Layer) else {}
    return model(*inputs, **mode)


class KerasNative(Native):
    """Functional models and optimizers of Keras."""

    def mlp(self, weights: Weights, inputs: Sequence[int], activation: str) -> keras.Model:
        model = [keras.Input(tuple(inputs)), layers.Flatten()]
        for name in numbered(weights, "hidden"):
            width = weights[f"{name}.weight"].shape[1]
            model.append(layers.Dense(width, activation=activation, name=name))
        return filled(keras.Sequential([*model, head(weights)]), weights)

    def convnet(self, weights: Weights, inputs: Sequence[int], activation: str) -> keras.Model:
        model = [keras.Input(tuple(inputs)), layers.Permute((2, 3, 1))]
        geometry: dict[str, Any] = {"padding": "same"}
        for name in numbered(weights, "conv"):
            channels = weights[f"{name}.weight"].shape[0]
            model += [
                layers.Conv2D(channels, 3, use_bias=False, name=name, **geometry),
                layers.BatchNormalization(momentum=0.9, epsilon=1e-5),
                layers.Activation(activation),
            ]
            geometry = {"strides": 2}
        model += [layers.Permute((3, 1, 2)), layers.Flatten(), head(weights)]
        return filled(keras.Sequential(model), weights)

    def transformer(self, weights: Weights, heads: int, causal: bool) -> keras.Model:
        vocabulary, width = weights["embedding"].shape
        length = len(weights["positions"]) if "positions" in weights else None
        tokens = keras.Input((length,), dtype="int64")
        x = layers.Embedding(vocabulary, width, name="embedding")(tokens)
        if length is not None:
            x = Positions(length, name="positions")(x)
        for number in range(1, len(numbered(weights, "query")) + 1):
            y = layers.LayerNormalization(epsilon=1e-5)(x)
            attention = layers.MultiHeadAttention(heads, width // heads, name=f"attention{number}")
            x = x + attention(y, y, use_causal_mask=causal)
            y = layers.LayerNormalization(epsilon=1e-5)(x)
            y = layers.Dense(2 * width, name=f"widen{number}")(y)
            y = layers.Dense(width, name=f"narrow{number}")(keras.ops.gelu(y, approximate=False))
            x = x + y
        x = x if causal else keras.ops.mean(x, axis=1)
        logits = head(weights)(layers.LayerNormalization(epsilon=1e-5)(x))
        return filled(keras.Model(tokens, logits), weights)

    def forward(self, model: Any, inputs: Sequence[Any]) -> Any:
        return _call(model, inputs, training=True)

    def inference(self, model: Any, x: Any) -> Any:
        return _call(model, [native_array(x)], training=False)

    def optimizer(
        self, name: str, model: Any, settings: Mapping[str, Any]
    ) -> keras.optimizers.Optimizer:
        if name == "sgd":
            made = SGD(
                settings["lr"],
                momentum=settings["momentum"],
                nesterov=settings["nesterov"],
                l2=settings["weight_decay"],
            )
        else:
            first, second = settings["betas"]
            decay = {"weight_decay": settings["weight_decay"]} if name == "adamw" else {}
            made = (AdamW if name == "adamw" else Adam)(
                settings["lr"], beta_1=first, beta_2=second, epsilon=settings["eps"], **decay
            )
        made.build(parameters(model))
        return made

    def rates(self, optimizer: keras.optimizers.Optimizer) -> list[float] | None:
        """A schedule is a dictionary in the optimizer's configuration."""
        rate = optimizer.get_config()["learning_rate"]
        return [float(rate)] if isinstance(rate, (int, float)) else None

    def set_rates(self, optimizer: keras.optimizers.Optimizer, rates: Sequence[float]) -> None:
        (optimizer.learning_rate,) = rates

    def tensor(self, x: Any, like: tf.Tensor) -> tf.Tensor:
        return native_array(np.asarray(x) if isinstance(x, (list, tuple)) else x)

    def at_hand(self, x: tf.Tensor) -> np.ndarray | None:
        on_cpu = tf.executing_eagerly() and "GPU" not in x.device and "TPU" not in x.device
        return self.host(x) if on_cpu else None

    def rows(self, x: tf.Tensor, indices: np.ndarray) -> tf.Tensor:
        return tf.gather(x, indices)

    def cross_entropy(
        self, logits: tf.Tensor, labels: tf.Tensor, axis: int, ignore_index: int
    ) -> tf.Tensor:
        if labels.dtype not in INTEGERS:
            labels = tf.cast(labels, tf.int64)
        last = len(logits.shape) - 1
        if axis != last:
            logits = tf.transpose(logits, [*(i for i in range(last + 1) if i != axis), axis])
        counts = labels != tf.constant(ignore_index, labels.dtype)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.where(counts, labels, tf.zeros_like(labels)), logits=logits
        )
        counts = tf.cast(counts, losses.dtype)
        return tf.reduce_sum(losses * counts) / tf.reduce_sum(counts)

    def mse_loss(self, prediction: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        if not target.dtype.is_floating:
            target = tf.cast(target, prediction.dtype)
        return tf.reduce_mean(tf.math.squared_difference(prediction, target))


native = KerasNative()
