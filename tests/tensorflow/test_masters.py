"""``Policy(masters=...)`` on TensorFlow: with any optimizer, in ``fit``, by XLA and in loops by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from kept_masters import KeptMasters, policy

import ampbridge as amp
from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from ampbridge_tensorflow.testing import TensorFlowHarness  # noqa: E402

STOCHASTIC = policy("stochastic")


class TestMasters(KeptMasters):
    harness = TensorFlowHarness()


def assert_low(values: npt.NDArray[Any]) -> None:
    np.testing.assert_array_equal(values, values.astype(ml_dtypes.bfloat16).astype("f"))


# -- ways to train

UNITS, UPDATES, RATE = 1024, 64, 2.0**-10
"""Weights of 1 grow by an eighth of a bfloat16 unit in each update."""

ONE = np.ones((1, 1), "f")


def perceptron() -> keras.Model:
    layer = keras.layers.Dense(UNITS, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((1,)), layer])
    return amp.decorate(model, policy=STOCHASTIC)


@keras.saving.register_keras_serializable("test_masters")
def falling(_: Any, prediction: Any) -> Any:
    return -tf.reduce_sum(prediction, -1)


def fit(model: Any, updates: int = UPDATES, **settings: Any) -> None:
    if not model.compiled:
        model.compile(keras.optimizers.SGD(RATE), falling, **settings)
    model.fit(tf.data.Dataset.from_tensors((ONE, ONE)).repeat(updates), shuffle=False, verbose=0)


def loop(model: Any, compiled: Callable[..., Any], names_variables: bool) -> None:
    optimizer, variables = keras.optimizers.SGD(RATE), model.trainable_variables
    optimizer.build(variables)

    @compiled
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = falling(None, model(x))
        grads = tape.gradient(loss, variables)
        if names_variables:
            optimizer.apply_gradients(zip(grads, variables, strict=True))
        else:
            optimizer.apply(grads)

    for _ in range(UPDATES):
        step(tf.constant(ONE))


def loss_fn(model: Any, x: Any) -> Any:
    return tf.reduce_sum(falling(None, model(x)))


def scaler_loop(model: Any) -> None:
    optimizer, scaler = keras.optimizers.SGD(RATE), amp.GradScaler()
    for _ in range(UPDATES):
        _, grads = amp.value_and_grad(loss_fn, model, ONE, policy=STOCHASTIC, scaler=scaler)
        scaler.step(optimizer, grads)
        scaler.update()


def train_step(model: Any, batches: Any = (ONE,) * UPDATES, **settings: Any) -> None:
    optimizer = keras.optimizers.SGD(RATE)
    step = amp.train_step(loss_fn, model, optimizer, policy=STOCHASTIC, **settings)
    for x in batches:
        step(x)


WAYS: dict[str, Callable[[Any], None]] = {
    "own loop": partial(loop, compiled=lambda step: step, names_variables=True),
    "own loop, traced": partial(loop, compiled=tf.function, names_variables=False),
    "own loop, XLA": partial(
        loop, compiled=partial(tf.function, jit_compile=True), names_variables=True
    ),
    "fit": partial(fit, jit_compile=False),
    "fit, XLA": partial(fit, jit_compile=True),
    "scaler.step": scaler_loop,
    "train_step": train_step,
    "train_step, eager": partial(train_step, compile=False),
}


@cache
def trained(way: str) -> npt.NDArray[Any]:
    model = perceptron()
    WAYS[way](model)
    amp.undecorate(model)
    (kernel,) = model.get_weights()
    return np.asarray(kernel[0])


@pytest.mark.parametrize("way", WAYS)
def test_small_updates_move_in_the_mean_and_draw_the_same_wherever_they_run(way: str) -> None:
    kernel = trained(way)
    assert_low(kernel)
    assert np.array_equal(kernel, trained("own loop"))
    expected = 2.0**-7 * np.sqrt(UPDATES * (1 / 8) * (7 / 8))  # a binomial distribution's
    assert kernel.std() == pytest.approx(expected, rel=0.1)
    assert abs(kernel.mean() - (1 + UPDATES * RATE)) <= 4 * expected / np.sqrt(UNITS)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_model_that_keras_has_saved_goes_on_with_the_same_draws(tmp_path: Path) -> None:
    model = perceptron()
    fit(model, UPDATES // 2)
    model.save(tmp_path / "half.keras")
    model = keras.models.load_model(tmp_path / "half.keras")
    fit(amp.decorate(model, policy=STOCHASTIC), UPDATES // 2)
    assert np.array_equal(model.get_weights()[0][0], trained("own loop"))
    amp.undecorate(model)


def test_a_skipped_step_changes_no_bit() -> None:
    model = perceptron()
    train_step(model, [ONE, np.inf * ONE] * UPDATES)
    assert np.array_equal(model.get_weights()[0][0], trained("own loop"))
    amp.undecorate(model)


# -- optimizers

OPTIMIZERS: dict[str, Any] = {
    name: kind
    for name, kind in vars(keras.optimizers).items()
    if isinstance(kind, type)
    and issubclass(kind, keras.optimizers.Optimizer)
    and kind not in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer)
}
if "MultiOptimizer" in OPTIMIZERS:

    def several(rate: float) -> Any:
        inside = keras.optimizers.SGD(rate)
        return keras.optimizers.MultiOptimizer(lambda _: inside)

    OPTIMIZERS["MultiOptimizer"] = several


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_of_any_optimizer_goes_to_a_number_next_to_it(name: str) -> None:
    values, apply = np.linspace(1, 2, 129)[:-1].astype("f"), keras.optimizers.Optimizer.apply
    found = []
    for masters in ("float32", "stochastic"):
        module = tf.Module()
        module.pair = [tf.Variable(values), tf.Variable(values)]
        amp.decorate(module, policy=policy(masters))
        OPTIMIZERS[name](2.0**-9).apply([tf.ones_like(v) for v in module.pair], module.pair)
        amp.undecorate(module)
        found.append([variable.numpy() for variable in module.pair])
    (exact, _), (first, second) = found
    for rounded in (first, second):
        assert_low(rounded)
        assert (np.abs(rounded - exact) < 2.0**-7).all()
    assert not np.array_equal(first, second) or np.abs(exact - values).max() < 2.0**-12
    assert keras.optimizers.Optimizer.apply is apply
