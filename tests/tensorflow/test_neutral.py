"""``ampbridge.neutral`` on TensorFlow."""

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import neutral
from ampbridge_testing import NeutralConformance, import_or_skip
from ampbridge_testing import neutral as suite

tf = import_or_skip("tensorflow")
import keras  # noqa: E402

from ampbridge_tensorflow.testing import TensorFlowHarness  # noqa: E402


class TestNeutral(NeutralConformance):
    harness = TensorFlowHarness()


CLASSES = {
    "adamw": keras.optimizers.AdamW,
    "adam": keras.optimizers.Adam,
    "sgd": keras.optimizers.SGD,
}


@pytest.mark.parametrize("name", CLASSES)
def test_an_optimizer_is_keras_own_and_is_saved_as_such(name):
    settings = {"weight_decay": 0.5} if name == "sgd" else {"eps": 1e-3}
    optimizer = neutral.optimizer(name, neutral.mlp("tensorflow", 6, [], 4), lr=0.25, **settings)
    assert isinstance(optimizer, CLASSES[name])
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()


@pytest.mark.parametrize("name", CLASSES)
def test_a_row_that_occurs_twice_has_the_sum_of_its_gradients(name):
    """Keras' Adam would average the sum of their squares."""
    start, rows, places = np.ones((3, 2)), np.array([[1.0, 2], [3, 4], [-1, 5]]), [2, 0, 2]
    variable = keras.Variable(start, name="table")
    optimizer = neutral.optimizer(name, neutral.mlp("tensorflow", 6, [], 4), lr=0.1)
    optimizer = type(optimizer).from_config(optimizer.get_config())
    optimizer.build([variable])
    expected, slots = start, (np.zeros((3, 2)), np.zeros((3, 2)))
    dense = np.zeros((3, 2))
    np.add.at(dense, places, rows)
    for step in range(3):
        values = tf.constant(rows, tf.float32)
        optimizer.apply([tf.IndexedSlices(values, tf.constant(places), tf.constant([3, 2]))])
        expected = suite.updated(name, {}, expected, dense, slots, step, 0.1)
    np.testing.assert_allclose(variable.numpy(), expected, atol=1e-6)


def test_an_optimizer_with_a_schedule_of_keras_is_refused():
    rate = keras.optimizers.schedules.CosineDecay(0.1, 10)
    with pytest.raises(amp.ArgumentError, match="cannot be set: a schedule of its own decides it"):
        neutral.schedule("linear", keras.optimizers.SGD(rate), steps=10)


def test_a_model_without_weights_is_refused():
    model = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(amp.ArgumentError, match="no trainable parameters, or has not been built"):
        neutral.optimizer("sgd", model, lr=0.1)


def test_forward_trains_a_layer_and_calls_a_module():
    x = tf.ones((4, 8))
    layer = keras.layers.Dropout(0.5, seed=0)
    assert not np.array_equal(neutral.forward(layer, x), x)
    np.testing.assert_array_equal(
        neutral.predict(keras.Sequential([keras.Input((8,)), layer]), x), x
    )

    class Doubled(tf.Module):
        def __call__(self, x):
            return 2 * x

    np.testing.assert_array_equal(neutral.forward(Doubled(), x), 2 * x)
