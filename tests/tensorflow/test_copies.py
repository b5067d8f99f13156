"""Copies of steps of models that Keras can copy."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

import ampbridge as amp  # noqa: E402

# Of Keras' own saving, by which it copies models.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
Y = np.ones((5, 2), np.float32)


def loss_fn(model: Any, x: Any, y: Any) -> Any:
    return tf.reduce_mean((model(x) - y) ** 2)


def training(**settings: Any) -> amp.TrainStep:
    keras.utils.set_random_seed(0)
    layers = [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    return amp.train_step(loss_fn, model, keras.optimizers.Adam(0.01), **settings)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("level", ["O0", "O2"])
def test_a_copy_goes_on_by_itself(level: str, compiled: bool) -> None:
    dtype = "float32" if level == "O0" else "float16"
    policy = amp.Policy(level, dtype, execution="auto" if level == "O0" else "simulated")
    step = training(policy=policy, compile=compiled)
    for _ in range(3):
        step(X, Y)
    before = step.model.get_weights()
    copied = copy.deepcopy(step)
    theirs = [copied(X, Y).loss for _ in range(3)]
    assert all(map(np.array_equal, step.model.get_weights(), before))
    assert theirs == [step(X, Y).loss for _ in range(3)]
    assert all(map(np.array_equal, step.model.get_weights(), copied.model.get_weights()))


def test_an_optimizer_of_more_than_the_model_is_not_copied() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    temperature = keras.Variable(1.0)
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([*model.trainable_variables, temperature])
    step = amp.train_step(
        lambda m, x, y: tf.reduce_mean((m(x) - y) ** 2) * temperature, model, optimizer, policy="O0"
    )
    with pytest.raises(amp.UnsupportedError, match=r"Hint: .*step\.load\(path\)"):
        copy.deepcopy(step)
