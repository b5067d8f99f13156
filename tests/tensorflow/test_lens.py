"""The lens on TensorFlow: twelve planted faults located and cured, in tf.Modules and in Keras layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from planted_faults import FAULTS, Fault, Forward, Kit, assert_located_and_cured

from ampbridge.testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402


class TensorFlowKit:
    """TensorFlow's own ops, looked up when they are called, and tf.Modules."""

    def layer(
        self,
        forward: Forward,
        weights: Mapping[str, np.ndarray] = {},
        parts: Mapping[str, Any] = {},
    ) -> Any:
        class Layer(tf.Module):
            def __call__(self, x: Any) -> Any:
                return forward(self, x)

        layer = Layer()
        for name, values in weights.items():
            setattr(layer, name, tf.Variable(values))
        for name, part in parts.items():
            setattr(layer, name, part)
        return layer

    def matmul(self, x: Any, y: Any) -> Any:
        return tf.matmul(x, y)

    def exp(self, x: Any) -> Any:
        return tf.exp(x)

    def log(self, x: Any) -> Any:
        return tf.math.log(x)

    def multiply(self, x: Any, y: Any) -> Any:
        return tf.multiply(x, y)

    def subtract(self, x: Any, y: Any) -> Any:
        return tf.subtract(x, y)

    def divide(self, x: Any, y: Any) -> Any:
        return x / y

    def sum(self, x: Any, axis: int | None = None) -> Any:
        return tf.reduce_sum(x, axis, keepdims=axis is not None)

    def mean(self, x: Any, axis: int | None = None) -> Any:
        return tf.reduce_mean(x, axis, keepdims=axis is not None)

    def transpose(self, x: Any) -> Any:
        return tf.transpose(x)


class KerasKit:
    """``keras.ops``, looked up when they are called, and Keras layers."""

    def __getattr__(self, op: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(keras.ops, op)
        return found

    def layer(
        self,
        forward: Forward,
        weights: Mapping[str, np.ndarray] = {},
        parts: Mapping[str, Any] = {},
    ) -> Any:
        class Layer(keras.Layer):
            def call(self, x: Any) -> Any:
                return forward(self, x)

        layer = Layer()
        for name, values in weights.items():
            setattr(layer, name, layer.add_weight(shape=values.shape, name=name))
            getattr(layer, name).assign(values)
        for name, part in parts.items():
            setattr(layer, name, part)
        layer.built = True
        return layer

    def sum(self, x: Any, axis: int | None = None) -> Any:
        return keras.ops.sum(x, axis, keepdims=axis is not None)

    def mean(self, x: Any, axis: int | None = None) -> Any:
        return keras.ops.mean(x, axis, keepdims=axis is not None)


KITS: Mapping[str, Kit] = {"tensorflow": TensorFlowKit(), "keras": KerasKit()}


@pytest.mark.parametrize("kit", KITS.values(), ids=KITS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_located_and_cured(fault: Fault, kit: Kit) -> None:
    assert_located_and_cured(kit, fault)
