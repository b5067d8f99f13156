"""The lens on TensorFlow: twelve planted faults located and cured, in tf.Modules and in Keras layers.

And what it looked at, given back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from given_back import X, assert_attributes_given_back, assert_given_back, every_report
from monitored import assert_monitored_alike
from planted_faults import (
    FAULTS,
    LOST,
    Fault,
    Forward,
    Kit,
    assert_located_and_cured,
    assert_raising_is_reported,
    assert_scale_is_found,
    assert_swallowed_is_located,
)

from ampbridge_testing import import_or_skip

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
    """Simulated: natively TensorFlow's gradient of a mean has the number of elements in float16, inf."""
    simulated = fault.policy.replace(execution="simulated")
    assert_located_and_cured(kit, fault._replace(policy=simulated))


def test_an_overflow_that_is_swallowed_is_located() -> None:
    assert_swallowed_is_located(KITS["tensorflow"])


def test_values_that_vanish_are_located_where_they_do() -> None:
    assert_located_and_cured(KITS["tensorflow"], LOST)


def test_what_comes_before_an_exception_is_reported() -> None:
    assert_raising_is_reported(KITS["tensorflow"])


def test_gradients_that_depend_on_the_scale_are_found() -> None:
    @tf.custom_gradient
    def clipped(x: tf.Tensor) -> Any:
        return tf.identity(x), lambda gradient: tf.clip_by_value(gradient, -0.5, 0.5)

    def forward(layer: Any, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(clipped(tf.matmul(x, layer.w)))

    model = KITS["tensorflow"].layer(forward, {"w": np.eye(4, dtype=np.float32)})
    assert_scale_is_found(model, lambda m, x: m(x), "matmul", "")


class Noisy(keras.Model):
    """Whatever a pass may change."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm = keras.layers.Dense(4), keras.layers.BatchNormalization()
        self.drop = keras.layers.Dropout(0.5, seed=1)
        self.calls = self.add_weight(shape=(), dtype="int32", trainable=False, name="calls")
        self.even = tf.Variable([True], trainable=False)
        self.own = tf.random.Generator.from_seed(2)

    def build(self, shape: tuple[int, ...]) -> None:
        for layer in self.dense, self.norm, self.drop:
            layer.build(shape)

    def call(self, x: Any, training: bool = True) -> Any:
        self.calls.assign_add(1)
        self.even.assign(tf.logical_not(self.even))
        x *= self.own.uniform(x.shape) + 1e-3 * tf.random.uniform(x.shape)
        x += keras.random.uniform(x.shape) * (random.random() + np.random.random())
        x *= tf.random.get_global_generator().uniform(x.shape)
        return self.drop(self.norm(self.dense(x), training=training), training=training)


class NoisyTensorFlow:
    """See ``given_back.Noisy``; beside its state the optimizer's."""

    def __init__(self, draws_before: bool) -> None:
        self.draws_before = draws_before

    def make(self) -> Noisy:
        keras.utils.set_random_seed(3)
        tf.random.set_global_generator(tf.random.Generator.from_seed(4))
        model = Noisy()
        model.build(X.shape)
        self.optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        self.optimizer.build(model.trainable_variables)
        if self.draws_before:  # else the look is the first to need Keras' generator
            self.loss(model, X)
        return model

    @staticmethod
    def loss(model: Noisy, x: Any) -> Any:
        return tf.reduce_mean(tf.square(model(tf.convert_to_tensor(x))))

    def state(self, model: Noisy) -> dict[str, Any]:
        variables = [*model.variables, model.even, model.own.state, *self.optimizer.variables]
        return {f"{n}": variable.numpy().tobytes() for n, variable in enumerate(variables)}

    def draw(self, model: Noisy) -> list[Any]:
        return [
            self.loss(model, X).numpy(),
            tf.random.uniform([3]).numpy().tolist(),
            keras.random.uniform([3]).numpy().tolist(),
            tf.random.get_global_generator().uniform([3]).numpy().tolist(),
        ]


@every_report
@pytest.mark.parametrize("draws_before", [True, False])
def test_a_look_gives_everything_back(report: str, draws_before: bool) -> None:
    assert_given_back(NoisyTensorFlow(draws_before), report)


@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.slow
def test_a_monitored_training_is_the_same(policy: str) -> None:
    assert_monitored_alike("tensorflow", policy)


@pytest.mark.parametrize("kit", KITS.values(), ids=KITS)
def test_what_forward_assigns_is_given_back(kit: Kit) -> None:
    model = kit.layer(
        lambda layer, x: tf.reduce_mean(tf.matmul(x, layer.w)), {"w": np.ones((4, 1), "f")}
    )
    model(X)
    model.cache = tf.zeros(3)
    cache = model.cache

    def forward(model: Any, x: tf.Tensor) -> tf.Tensor:
        model.cache = model.cache + 1.0
        return model(x)

    assert_attributes_given_back(model, forward)
    assert model.cache is cache
