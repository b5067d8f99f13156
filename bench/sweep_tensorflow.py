"""The TensorFlow side of sweep.py, in compiled steps."""

from __future__ import annotations

from functools import partial

import keras
import tensorflow as tf
from overhead_tensorflow import NAME, bridged, native
from sweep import WIDTH, Makers, batch

import ampbridge as amp


class ManyParameters(keras.Model):
    """So many parameters, whose sum multiplies the input."""

    def __init__(self, count: int, dtype: str) -> None:
        super().__init__(dtype=dtype)
        self.each = [self.add_weight(shape=(WIDTH,)) for _ in range(count)]

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x * tf.add_n([tf.convert_to_tensor(each) for each in self.each])


class Chain(keras.Model):
    """``count`` ops in a row."""

    def __init__(self, op: str, count: int, dtype: str) -> None:
        super().__init__(dtype=dtype)
        self.weight = self.add_weight(shape=(WIDTH, WIDTH))
        self.op, self.count = op, count

    def call(self, x: tf.Tensor) -> tf.Tensor:
        op = {
            "relu": tf.nn.relu,
            "linear": lambda x: tf.matmul(x, self.weight),
            "softmax": tf.nn.softmax,
        }[self.op]
        x = x * self.weight[0]
        for _ in range(self.count):
            x = op(x)
        return x


def makers(swept: str, count: int) -> Makers:
    """With a scaler, which goes over the parameters, or without."""
    x, y = map(tf.constant, batch())
    scaled = swept == "parameters"

    def model(dtype: str) -> keras.Model:
        made = ManyParameters(count, dtype) if scaled else Chain(swept, count, dtype)
        made(x)
        return made

    keras_loop = partial(native, model, x, y, scaled, f"mixed_{NAME}")
    return {
        f"Keras mixed_{NAME}": keras_loop,
        "ampbridge, default lists": partial(bridged, model, x, y, scaled, amp.Policy("O1", NAME)),
        f"Keras mixed_{NAME}, again": keras_loop,
    }
