"""The public API inside a user's own tf.function, whose source AutoGraph converts."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import ampbridge as amp


@pytest.fixture
def complaints():
    """What TensorFlow logs meanwhile: AutoGraph says there what it could not convert."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    tf.get_logger().addHandler(handler)
    yield records
    tf.get_logger().removeHandler(handler)


@pytest.fixture
def parts():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    x = np.random.default_rng(0).standard_normal((8, 4), dtype=np.float32)
    return model, optimizer, tf.constant(x)


def loss_fn(model, x):
    loss = tf.reduce_mean(tf.square(model(x)))
    if loss > 1000.0:  # a branch on a tensor, which only AutoGraph makes possible here
        loss = loss * 0.0
    return loss


def test_a_loop_by_hand(parts, complaints):
    model, optimizer, x = parts
    scaler = amp.GradScaler(2.0**10)

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            with amp.autocast("O1", backend="tensorflow"):
                loss = loss_fn(model, x)
            scaled = scaler.scale(loss)
        grads = tape.gradient(scaled, model.trainable_variables)
        applied = scaler.step(optimizer, grads)
        scaler.update()
        return loss, applied

    losses = [float(train(x)[0]) for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]
    assert scaler.state_dict()["good_steps"] == 3
    assert [r.getMessage() for r in complaints] == []


def test_a_decorated_loss(parts, complaints):
    model, _, x = parts

    @tf.function
    def loss_in_region(x):
        return amp.autocast("O1", backend="tensorflow")(loss_fn)(model, x)

    in_region = tf.function(amp.autocast("O1", backend="tensorflow")(loss_fn))
    with amp.autocast("O1", backend="tensorflow"):
        expected = float(loss_fn(model, x))
    assert (
        float(loss_in_region(x)) == float(in_region(model, x)) == pytest.approx(expected, rel=1e-6)
    )
    assert expected != float(loss_fn(model, x))
    assert [r.getMessage() for r in complaints] == []


def test_value_and_grad_converts_the_loss(parts, complaints):
    model, optimizer, x = parts
    scaler = amp.GradScaler(2.0**10)

    @tf.function
    def train(x):
        loss, grads = amp.value_and_grad(loss_fn, model, x, policy="O1", scaler=scaler)
        applied = scaler.step(optimizer, grads)
        scaler.update()
        return loss, applied

    losses = [float(train(x)[0]) for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]
    assert [r.getMessage() for r in complaints] == []
