"""``execution="simulated"``: the rules of a native region, float32 arithmetic, one rounding an op."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from recorder import RECORDERS  # noqa: E402
from test_ops import inputs  # noqa: E402

import ampbridge as amp  # noqa: E402
from ampbridge.policies import hardware  # noqa: E402
from ampbridge_tensorflow.autocast import casting, execution  # noqa: E402

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
MODES: dict[str, Callable[..., Any]] = {
    "eager": lambda function: function,
    "tf.function": lambda function: tf.function(function, autograph=False),
    "XLA": lambda function: tf.function(function, autograph=False, jit_compile=True),
}
every_mode = pytest.mark.parametrize("mode", MODES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def rounded(x: Any, dtype: str) -> np.ndarray:
    """``x`` in float32, with ``dtype``'s values, by NumPy and ml_dtypes."""
    return np.asarray(x, np.float32).astype(DTYPES[dtype]).astype(np.float32)


def region(dtype: str = "float16", **lists: Any) -> Any:
    return casting.region(amp.Policy("O1", dtype, execution="simulated", **lists))


def assert_bits(actual: Any, expected: np.ndarray) -> None:
    actual = tf.cast(actual, tf.float32).numpy()
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


# -- the rules; of each op, with its arithmetic, in test_ops.py


@pytest.mark.parametrize("mode", RECORDERS)
def test_kernels_run_in_float32_and_what_moves_values_in_the_stored_dtype(mode: str) -> None:
    def forward(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with region(allow=["exp"]):
            return tf.reshape(tf.transpose(tf.exp(x @ y)), (2, 8))

    result, seen = RECORDERS[mode](forward, *inputs("float32"))
    assert result.dtype == tf.float16
    assert {"MatMul": "float32", "Exp": "float32"}.items() <= dict(seen).items()
    assert dict(seen)["Reshape"] == dict(seen)["Transpose"] == "float16"


def test_denied_ops_and_o0_inside_are_float32() -> None:
    x, y = inputs("float32")
    with region(deny=["matmul", "linear"]):
        product = x @ y
    assert product.dtype == tf.float32
    exact = x.numpy().astype(np.float64) @ y.numpy().astype(np.float64)
    # Four positive terms in any order: a rounding for each product and sum. Float16's is 2^-11.
    np.testing.assert_allclose(product, exact, rtol=7 * 2.0**-24)
    with region(), casting.region(amp.Policy("O0")):
        assert (tf.cast(x, tf.float16) @ y).dtype == tf.float32


# -- one rounding a layer: sums of small whole numbers, which float32 adds up exactly in any order

RNG = np.random.default_rng(0)
X = RNG.integers(-40, 40, (4, 6, 6, 16)).astype(np.float32)
KERNEL = RNG.integers(-40, 40, (16, 8)).astype(np.float32)
BIAS = RNG.integers(-9000, 9000, 8).astype(np.float32)
UPSTREAM = RNG.integers(-9, 9, (4, 6, 6, 8)).astype(np.float32)

LAYERS: dict[str, Callable[[], keras.Layer]] = {
    "Dense": lambda: keras.layers.Dense(8),
    "EinsumDense": lambda: keras.layers.EinsumDense("abcd,de->abce", (6, 6, 8), bias_axes="e"),
    "EinsumDense, bias of two axes": lambda: keras.layers.EinsumDense(
        "abcd,def->abcef", (6, 6, 2, 4), bias_axes="ef"
    ),
    "Conv2D": lambda: keras.layers.Conv2D(8, 1),
}


def affine(name: str) -> tuple[Callable[[tf.Tensor], tf.Tensor], list[tf.Variable]]:
    """A function of ``X``, and its kernel and bias."""
    if name == "bias_add":
        kernel, bias = tf.Variable(KERNEL), tf.Variable(BIAS)
        return lambda x: tf.nn.bias_add(tf.matmul(x, kernel), bias), [kernel, bias]
    layer = LAYERS[name]()
    layer.build(X.shape)
    for variable, value in zip(layer.weights, (KERNEL, BIAS), strict=True):
        variable.assign(value.reshape(variable.shape))
    return layer, [v.value for v in layer.trainable_variables]


@every_mode
@every_dtype
@pytest.mark.parametrize("name", [*LAYERS, "bias_add"])
def test_a_product_and_its_bias_are_rounded_once(name: str, dtype: str, mode: str) -> None:
    function, variables = affine(name)

    def run(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            with region(dtype):
                y = function(x)
            flat = tf.reshape(tf.cast(y, tf.float32), UPSTREAM.shape)
            total = tf.reduce_sum(flat * UPSTREAM)
        return y, tape.gradient(total, [x, *variables])  # outside of the region

    y, gradients = MODES[mode](run)(tf.constant(X))
    assert y.dtype.name == dtype
    product = rounded(X, dtype) @ rounded(KERNEL, dtype)
    expected = rounded(product + rounded(BIAS, dtype), dtype)
    assert (rounded(rounded(product, dtype) + rounded(BIAS, dtype), dtype) != expected).any()
    assert_bits(tf.reshape(y, UPSTREAM.shape), expected)
    of_x, of_kernel, of_bias = gradients
    rows, upstream = rounded(X, dtype).reshape(-1, 16), UPSTREAM.reshape(-1, 8)
    assert_bits(of_x, rounded(UPSTREAM @ rounded(KERNEL, dtype).T, dtype))
    assert_bits(tf.reshape(of_kernel, (16, 8)), rounded(rows.T @ upstream, dtype))
    assert_bits(tf.reshape(of_bias, (8,)), rounded(upstream.sum(0), dtype))


def test_a_sum_that_is_no_bias_is_an_op_of_its_own() -> None:
    x, kernel = X.reshape(-1, 16), KERNEL
    bias = tf.cast(BIAS, tf.float16)
    product = rounded(x @ kernel, "float16")
    with region():
        low = tf.constant(x) @ kernel
        assert_bits(low + bias, rounded(product + rounded(BIAS, "float16"), "float16"))
        fresh = tf.constant(x) @ kernel
        assert_bits(tf.nn.relu(fresh), np.maximum(product, 0))


# -- gradients


@every_mode
@every_dtype
def test_a_gradient_is_of_the_unrounded_result(dtype: str, mode: str) -> None:
    """The derivative of exp is exp, before it is rounded."""
    x = rounded(np.linspace(-2, 2, 64), dtype)

    def run(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            with region(dtype, allow=["exp"]):
                y = tf.exp(x)
            total = tf.reduce_sum(tf.cast(y, tf.float32) * 3.0)
        return tape.gradient(total, x)

    gradient = MODES[mode](run)(tf.constant(x))
    exact = rounded(3.0 * np.exp(x.astype(np.float64)), dtype)
    of_rounded = rounded(3.0 * rounded(np.exp(x), dtype), dtype)
    assert (gradient.numpy() == exact).mean() > 0.95  # but for ties of float32's own exp
    assert (gradient.numpy() == of_rounded).mean() < 0.9


@every_mode
@every_dtype
@pytest.mark.parametrize("inside", [True, False])
def test_gradients_are_added_up_in_float32(inside: bool, dtype: str, mode: str) -> None:
    """And rounded once: a column that is looked up 4097 times."""
    table = tf.constant(np.ones((3, 2), np.float32))
    indices = np.zeros(4097, np.int32)

    def run(table: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(table)
            with region(dtype):
                columns = tf.gather(tf.cast(table, dtype), indices, axis=1)
            total = tf.reduce_sum(tf.cast(columns, tf.float32))
            if not inside:
                return tape.gradient(total, table)
        with casting.differentiation(amp.Policy("O1", dtype, execution="simulated")):
            return tape.gradient(total, table)

    gradient = MODES[mode](run)(table)
    np.testing.assert_array_equal(gradient, [[4096.0, 0.0]] * 3)


@every_mode
def test_what_differentiates_a_whole_function_sees_the_same(mode: str) -> None:
    """An outer tape takes its gradient from the graph, where an inner one was told of each op."""
    function, variables = affine("Dense")

    def forward(x: tf.Tensor) -> tf.Tensor:
        with region():
            return tf.reduce_sum(tf.cast(function(x), tf.float32))

    with tf.GradientTape() as tape:
        total = MODES[mode](forward)(tf.constant(X))
    _, of_bias = tape.gradient(total, variables)
    assert_bits(of_bias, np.full(8, X.size / 16, np.float32))


@every_mode
def test_custom_gradients_compute_in_float32(mode: str) -> None:
    """Ones added up in float16, row by row, stand still at 2048."""

    @tf.custom_gradient
    def halved(x: tf.Tensor) -> Any:
        return x / 2, lambda upstream: tf.reduce_sum(tf.tile(upstream[None], (30000, 1)), 0)

    def run(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            with region():
                y = tf.reduce_sum(tf.cast(halved(tf.cast(x, tf.float16)), tf.float32))
        return tape.gradient(y, x)

    np.testing.assert_array_equal(MODES[mode](run)(tf.ones(4)), [30000.0] * 4)


# -- the choice


def auto(dtype: str) -> str:
    return execution.of(amp.Policy("O1", dtype))


def test_auto_is_native_where_that_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "asked_execution", lambda: "auto")
    monkeypatch.setattr(execution, "_bfloat16_instructions", lambda: ("AMX",))
    assert (auto("float16"), auto("bfloat16")) == ("simulated", "native")
    monkeypatch.setattr(execution, "_bfloat16_instructions", lambda: ())
    assert (auto("float16"), auto("bfloat16")) == ("simulated", "simulated")
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [kind])
    assert (auto("float16"), auto("bfloat16")) == ("native", "native")


@pytest.mark.parametrize("how", ["native", "simulated"])
def test_auto_is_what_the_environment_asks_for(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "asked_execution", lambda: how)
    assert (auto("float16"), auto("bfloat16")) == (how, how)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [kind])  # no CPU
    assert (auto("float16"), auto("bfloat16")) == ("native", "native")


@pytest.mark.parametrize("how", ["native", "simulated"])
def test_what_is_asked_for_is_done(how: Any) -> None:
    for level, expected in (("O0", "native"), ("O1", how), ("O2", how)):
        policy = amp.Policy(level, execution=how)  # type: ignore[arg-type]
        assert execution.of(policy) == expected


@pytest.mark.slow
def test_one_warning_a_process_and_none_where_it_was_asked_for() -> None:
    program = """
import warnings
import tensorflow as tf
import ampbridge as amp
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for policy in (amp.Policy(execution="simulated"), "O1", "O1", "O2"):
        with amp.autocast(policy, "tensorflow"):
            pass
        print([w.category.__name__ for w in caught if w.filename == "<string>"])
"""
    environment = {**os.environ, "AMPBRIDGE_CPU_EXECUTION": "auto"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    said = "['SimulationWarning']"
    assert done.stdout.split("\n")[:4] == ["[]", said, said, said]


OPENED_BY = {
    "a region": "with amp.autocast('O1', 'tensorflow'): pass",
    "a step": "amp.train_step(lambda m, x: tf.reduce_sum(m(x)), model, sgd, policy='O1')(x)",
    "an eager step": (
        "amp.train_step(lambda m, x: tf.reduce_sum(m(x)), model, sgd, policy='O1', compile=False)(x)"
    ),
    "a decorated model": "amp.decorate(model, policy='O2'); model(x)",
    "fit": "amp.decorate(model, policy='O2'); model.compile(sgd, 'mse'); model.fit(x, x, verbose=0)",
}


@pytest.mark.parametrize("opened_by", OPENED_BY)
def test_the_warning_points_to_the_users_line(
    opened_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_warned", False)
    monkeypatch.setattr(hardware, "asked_execution", lambda: "auto")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    names = {"amp": amp, "tf": tf, "model": model, "sgd": keras.optimizers.SGD(0.1)}
    code = compile(OPENED_BY[opened_by], "the user's line", "exec")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", amp.SimulationWarning)
        exec(code, {"__name__": "__main__", **names, "x": tf.ones((3, 2))})
    amp.undecorate(model)
    places = [w.filename for w in caught if w.category is amp.SimulationWarning]
    assert places == ["the user's line"]
