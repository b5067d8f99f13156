"""What TensorFlow's and Keras' own ways of training leave behind; those of all backends are in the suite."""

from __future__ import annotations

import gc
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ampbridge as amp
from ampbridge import lens
from ampbridge_tensorflow import LossScaleOptimizer
from ampbridge_testing.growth import BOUND, Call, growth

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal((256, columns)).astype(np.float32) for columns in (32, 16))


def loss_fn(model: Any, x: Any, y: Any) -> Any:
    return tf.reduce_mean(tf.square(model(x) - y))


def new() -> tuple[Any, Any]:
    model = keras.Sequential([keras.layers.Dense(128, "relu"), keras.layers.Dense(16)])
    model.build((None, 32))
    return model, keras.optimizers.Adam(1e-3)


def keeps_nothing(call: Call) -> None:
    found = growth(call)
    assert found.is_within(BOUND), found


@pytest.mark.parametrize("policy", ["O0", "O1:bfloat16", "O2"])
def test_fit_leaves_nothing(policy: str) -> None:
    model, optimizer = new()
    model = amp.decorate(model, policy=policy)
    model.compile(LossScaleOptimizer(optimizer, amp.GradScaler()), "mse")
    keeps_nothing(lambda: model.train_on_batch(X, Y))


def test_a_report_leaves_nothing() -> None:
    model, _ = new()
    keeps_nothing(lambda: lens.census(loss_fn, model, X, Y))


def test_a_loop_by_tape_leaves_nothing() -> None:
    (model, optimizer), scaler = new(), amp.GradScaler()
    optimizer.build(model.trainable_variables)
    x, y = tf.constant(X), tf.constant(Y)

    @tf.function
    def iterate() -> Any:
        with tf.GradientTape() as tape, amp.autocast("O1", "tensorflow"):
            loss = scaler.scale(loss_fn(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        applied = scaler.step(optimizer, gradients)
        scaler.update()
        return applied

    keeps_nothing(iterate)


def test_a_dropped_step_frees_its_programs() -> None:
    """What TensorFlow keeps is graphs: it registers the gradient function in Keras' optimizers for good."""
    model, optimizer = new()
    gc.collect()
    before = programs()
    step = amp.train_step(loss_fn, model, optimizer, policy="O1")
    step(X, Y)
    assert programs() > before
    del step
    gc.collect()
    assert programs() == before


def programs() -> int:
    """How many ``tf.function`` there are."""
    kind = type(tf.function(lambda: None))
    return sum(type(each) is kind for each in gc.get_objects())
