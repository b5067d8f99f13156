"""The conformance suite's view of TensorFlow and Keras. Never uses the backend."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ampbridge import Backend
from ampbridge_tensorflow.backend import TensorflowBackend
from ampbridge_testing import Harness, attributes_of, contents
from ampbridge_testing.harness import LayeredModel


class Layered(LayeredModel, keras.Model):
    """The suite's model, subclassed."""

    call = LayeredModel.forward

    def linear(self, inputs: int, outputs: int) -> keras.layers.Dense:
        return keras.layers.Dense(outputs)

    def layer_norm(self, width: int) -> keras.layers.LayerNormalization:
        return keras.layers.LayerNormalization(epsilon=1e-5)

    def relu(self, x: Any) -> Any:
        return keras.ops.relu(x)

    def fill(self, values: Sequence[np.ndarray]) -> None:
        self(np.zeros((1, len(values[0])), np.float32))
        self.set_weights(values)


class TensorFlowHarness(Harness):
    """A Keras model, Keras optimizers and raw TensorFlow ops."""

    frameworks = ("tensorflow", "keras")
    compiles = True
    copies = False
    stores_gradients = False
    simulated = False
    has_kernels = True
    linear_kind = "Dense"
    layered = Layered

    def __init__(self, tested: Backend | None = None) -> None:
        self.backend = tested or TensorflowBackend()

    def array(self, values: Any, dtype: str = "float32") -> tf.Tensor:
        return tf.constant(np.asarray(values).astype(tf.as_dtype(dtype).as_numpy_dtype))

    def numpy(self, x: tf.Tensor) -> np.ndarray:
        return np.array(tf.convert_to_tensor(x).numpy())

    def run(self, op: str, *inputs: tf.Tensor) -> tf.Tensor:
        ops = {"matmul": tf.matmul, "exp": tf.exp, "add": tf.add, "atan2": tf.atan2}
        return ops[op](*inputs)

    def model(self, weights: Sequence[np.ndarray]) -> keras.Sequential:
        inner, outer = weights[0].shape[1], weights[2].shape[1]
        layers = [keras.layers.Dense(inner, activation="relu"), keras.layers.Dense(outer)]
        model = keras.Sequential([keras.Input(weights[0].shape[:1]), *layers])
        model.set_weights(weights)
        return model

    def hidden(self, model: keras.Sequential, x: tf.Tensor) -> tf.Tensor:
        return model.layers[0](x)

    def low_by_itself(self, weights: Sequence[np.ndarray], dtype: str) -> Layered:
        return self._under(f"mixed_{dtype}", weights)

    def in_16_bits(self, weights: Sequence[np.ndarray], dtype: str) -> Layered:
        return self._under(dtype, weights)

    def _under(self, policy: str, weights: Sequence[np.ndarray]) -> Layered:
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(policy)
        try:
            return self.layered(weights, outputs=lambda y: keras.ops.cast(y, "float32"))
        finally:
            keras.config.set_dtype_policy(before)

    def details(
        self, model: keras.Model, optimizer: keras.optimizers.Optimizer
    ) -> Mapping[str, object]:
        found = contents("optimizer", optimizer)
        for layer in [model, *model._flatten_layers(include_self=False)]:
            policies = layer.dtype_policy.name, layer.compute_dtype, layer.variable_dtype
            found |= {**contents(layer.name, layer), layer.name: policies}
            found[f"{layer.name}._dtype_policy[]"] = layer.dtype_policy
        return found | {variable.path: variable.dtype for variable in model.variables}

    def mean_squared_error(self, prediction: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.square(prediction - target))

    def parameters(self, model: keras.Model) -> list[Any]:
        return list(model.trainable_variables)

    def optimizer(
        self, model: keras.Model, kind: str, rate: float, *others: keras.Model
    ) -> keras.optimizers.Optimizer:
        if kind == "adam":
            optimizer = keras.optimizers.Adam(rate)
        else:
            optimizer = keras.optimizers.SGD(rate, momentum=0.9 if kind == "momentum" else 0.0)
        optimizer.build([v for each in (model, *others) for v in each.trainable_variables])
        return optimizer

    def freeze(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        model.trainable = False

    def slots(self, optimizer: keras.optimizers.Optimizer) -> list[np.ndarray]:
        return [self.numpy(variable) for variable in optimizer.variables]

    def native_gradients(
        self, model: keras.Model, loss_fn: Any, batch: Sequence[tf.Tensor], scale: Any
    ) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            scaled = scale(loss_fn(model, *batch))
        return list(tape.gradient(scaled, model.trainable_variables))

    def on_backward(self, x: tf.Tensor, call: Callable[[], None]) -> tf.Tensor:
        @tf.custom_gradient
        def identity(value: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                call()
                return upstream

            return tf.identity(value), gradient

        return identity(x)

    def is_differentiable(self, x: tf.Tensor) -> bool:
        return False  # a tensor has no history; a tape that has closed knows it no more

    def is_tracing(self) -> bool:
        return not tf.executing_eagerly()

    def ambient(self) -> Mapping[str, object]:
        read = tf.Variable(1.0)
        tf.square(read)
        variable = weakref.ref(read)
        del read
        gc.collect()  # a decorated model that nobody holds is still decorated until then
        return {
            "held by a tf.GradientTape": variable() is not None,
            "default dtype": keras.config.floatx(),
            "dtype policy": keras.config.dtype_policy().name,
            **attributes_of(
                tf, tf.Tensor, tf.Variable, tf.raw_ops, keras.Layer, keras.Operation, keras.ops
            ),
        }
