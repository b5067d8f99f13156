"""Whole models: gradients beside a float64 reference, in every way that TensorFlow runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402
from recorder import traced  # noqa: E402

import ampbridge as amp  # noqa: E402
from ampbridge_tensorflow.backend import TensorflowBackend  # noqa: E402
from ampbridge_testing.gradients import ERROR_BOUNDS  # noqa: E402

BACKEND = TensorflowBackend()
SCALE = 1024.0  # as a scaler would: unscaled, the smallest gradients of float16 are lost


def sequential() -> keras.Model:
    return keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, "tanh"), layers.Dense(16, "gelu"), layers.Dense(4)]
    )


def functional() -> keras.Model:
    inputs = keras.Input((8,))
    x = layers.Dense(8)(inputs)
    y = keras.ops.matmul(keras.ops.expand_dims(x, 1), keras.ops.expand_dims(x, 2))
    x = keras.ops.tanh(x) + keras.ops.reshape(y, (-1, 1)) * 0.01
    x = keras.ops.softmax(x) + keras.ops.exp(-keras.ops.square(x))
    return keras.Model(inputs, layers.Dense(4)(x))


class Residual(keras.Model):
    """Raw arithmetic between layers, and a nested model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([layers.Dense(8, "silu"), layers.LayerNormalization()])
        self.blocks = [layers.Dense(8, "tanh") for _ in range(2)]
        self.head = layers.Dense(4)

    def call(self, x: Any) -> Any:
        x = self.inner(x)
        for block in self.blocks:
            x = x + block(x) / 2.0
        return self.head(x)


def attention() -> keras.Model:
    tokens = keras.Input((8,), dtype="int32")
    x = layers.Embedding(8, 8)(tokens)
    x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(2, 4)(x, x)]))
    return keras.Model(tokens, layers.Dense(4)(layers.GlobalAveragePooling1D()(x)))


def convolution() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Reshape((4, 2, 1)),
            layers.Conv2D(4, 2, padding="same"),
            layers.BatchNormalization(),
            layers.Activation("tanh"),
            layers.DepthwiseConv2D(2, padding="same"),
            layers.Conv2DTranspose(4, 2),
            layers.Flatten(),
            layers.Dense(4),
        ]
    )


def recurrent() -> keras.Model:
    return keras.Sequential(
        [keras.Input((8,)), layers.Reshape((4, 2)), layers.LSTM(4), layers.Dense(4)]
    )


class Raw(tf.Module):
    """No Keras at all."""

    def __init__(self) -> None:
        super().__init__()
        random, dtype = np.random.default_rng(0), keras.config.floatx()
        self.inner = tf.Variable(random.normal(size=(8, 8)) / 3.0, dtype=dtype)
        self.bias = tf.Variable(random.normal(size=8), dtype=dtype)
        self.outer = tf.Variable(random.normal(size=(8, 4)) / 3.0, dtype=dtype)

    def __call__(self, x: Any) -> Any:
        x = tf.nn.bias_add(tf.cast(x, self.inner.dtype) @ self.inner, self.bias)
        x = tf.tanh(x) + x / (1.0 + tf.abs(x)) * tf.sigmoid(self.bias)
        return tf.einsum("bi,ij->bj", x, self.outer)


MODELS: dict[str, Callable[[], Any]] = {
    "sequential": sequential,
    "functional": functional,
    "subclassed and nested": Residual,
    "attention": attention,
    "convolution": convolution,
    "recurrent": recurrent,
    "raw": Raw,
}

# Allow-listed ops that compute the model's products, by the model.
PRODUCTS = {"MatMul", "BatchMatMulV2", "Einsum", "Conv2D", "DepthwiseConv2dNative"}


@contextmanager
def float64() -> Iterator[None]:
    """Models made in here compute in float64."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        yield
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


def made(name: str) -> Any:
    keras.utils.set_random_seed(1)
    model = MODELS[name]()
    model(batch(name)[0])  # builds it
    return model


def batch(name: str) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(2)
    x = random.integers(0, 8, (16, 8)) if name == "attention" else random.normal(size=(16, 8))
    return x, random.integers(0, 4, 16)


def loss_fn(model: Any, x: Any, y: Any) -> Any:
    logits = model(x, training=True) if isinstance(model, keras.Model) else model(x)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)), None


def weights(model: Any) -> list[Any]:
    return list(model.trainable_variables)


def reference(name: str, values: list[np.ndarray]) -> np.ndarray:
    """The gradients in float64, by TensorFlow alone, as one vector."""
    with float64():
        model = made(name)
        for variable, value in zip(weights(model), values, strict=True):
            variable.assign(value)
        x, y = batch(name)
        with tf.GradientTape() as tape:
            loss, _ = loss_fn(model, x, y)
    return flat(tape.gradient(loss, weights(model)))


def flat(grads: list[Any]) -> np.ndarray:
    dense = [tf.convert_to_tensor(g).numpy().astype(np.float64) for g in grads]
    return np.concatenate([g.ravel() for g in dense])


@pytest.fixture(scope="module", params=MODELS)
def prepared(request: pytest.FixtureRequest) -> tuple[str, Any, np.ndarray]:
    model = made(request.param)
    values = [tf.convert_to_tensor(v).numpy() for v in weights(model)]
    return request.param, model, reference(request.param, values)


@pytest.mark.parametrize("mode", ["eager", "tf.function", "XLA"])
@pytest.mark.parametrize(
    "policy",
    [
        amp.Policy("O1", "float16", execution="native"),
        amp.Policy("O1", "float16", execution="simulated"),
        amp.Policy("O1", "bfloat16", execution="native"),
    ],
    ids=["float16", "simulated", "bfloat16"],
)
@pytest.mark.slow
def test_gradients_beside_float64(prepared: Any, policy: amp.Policy, mode: str) -> None:
    name, model, exact = prepared
    x, y = batch(name)

    def run(x: Any, y: Any) -> Any:
        return BACKEND.gradients(loss_fn, model, (x, y), policy, tf.constant(SCALE), None)[2]

    if mode != "eager":
        run = tf.function(run, jit_compile=mode == "XLA", autograph=False)
    grads = run(tf.cast(x, tf.int32 if name == "attention" else tf.float32), y)
    for gradient in grads:
        assert gradient.dtype == tf.float32
    error = np.linalg.norm(flat(grads) / SCALE - exact) / np.linalg.norm(exact)
    assert error < ERROR_BOUNDS[policy.dtype]
    assert error > 1e-6  # it was not float32 after all


def test_denied_products_bring_the_error_back(prepared: Any) -> None:
    name, model, exact = prepared
    x, y = batch(name)
    denied = ["matmul", "bmm", "einsum", "linear", "conv2d", "depthwise_conv2d", "conv_transpose2d"]
    policy = amp.Policy(
        "O1", "float16", deny=[*denied, "scaled_dot_product_attention", "lstm", "lstm_cell"]
    )
    x = x.astype(np.int32 if name == "attention" else np.float32)
    _, _, grads = BACKEND.gradients(loss_fn, model, (x, y), policy, None, None)
    assert np.linalg.norm(flat(grads) - exact) / np.linalg.norm(exact) < 1e-5


def test_every_product_of_the_forward_pass_is_low(prepared: Any) -> None:
    name, model, _ = prepared

    def forward(x: Any) -> Any:
        with BACKEND.autocast(amp.Policy(execution="native")):
            return model(x)

    x = batch(name)[0]
    _, seen = traced(forward, tf.constant(x, tf.int32 if name == "attention" else tf.float32))
    products = {dtype for op, dtype in seen if op in PRODUCTS}
    assert products == {"float16"}


FORWARD: dict[str, Callable[[Any, Any], Any]] = {
    "BiasAddGrad": lambda layer, x: layer(x),
    "Sum": lambda layer, x: tf.matmul(x, layer.kernel) + layer.bias,
}


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("mode", ["eager", "tf.function"])
@pytest.mark.parametrize("execution", ["native", "simulated"])
@pytest.mark.parametrize("op", FORWARD)
def test_the_gradient_of_a_bias_over_many_rows(
    op: str, execution: Any, mode: str, dtype: tf.DType
) -> None:
    """TensorFlow's own kernels add 4096 rows up in the low dtype, and are most of it off."""
    rows = 4096
    layer = keras.layers.Dense(2)
    layer.build((rows, 4))
    x = np.ones((rows, 4), np.float32)
    policy = amp.Policy("O1", dtype.name, allow=["add"], execution=execution)

    def loss(model: Any, x: Any) -> Any:
        y = FORWARD[op](model, x)
        assert y.dtype == dtype
        return tf.reduce_sum(tf.cast(y, tf.float32)), None

    def run(x: Any) -> Any:
        return BACKEND.gradients(loss, layer, (x,), policy, None, None)[2][1]

    gradient = run(x) if mode == "eager" else tf.function(run, autograph=False)(x)
    np.testing.assert_allclose(gradient, [rows, rows], rtol=1e-3)


def test_the_native_gradient_of_a_bias_over_many_rows_is_wrong() -> None:
    """Why ours differs: 256 in bfloat16 swallow each further 1."""
    with tf.GradientTape() as tape:
        bias = tf.ones(2, tf.bfloat16)
        tape.watch(bias)
        y = tf.nn.bias_add(tf.zeros((4096, 2), tf.bfloat16), bias)
    gradient = tf.cast(tape.gradient(y, bias), tf.float32)
    assert np.all(gradient.numpy() < 0.2 * 4096)
