"""A traced step updates no variable before every gradient has read it.

TensorFlow 2.21 gets this wrong now and then, with Keras optimizers alone as well: a gradient that
does not depend on its own parameter may read another one after its update. A dozen traces, as about
every second one was wrong before the adapter ordered the two.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import ampbridge as amp

pytestmark = pytest.mark.slow


class Product(tf.Module):
    """Rows of a table times a vector: each one's gradient is the other."""

    def __init__(self):
        super().__init__()
        self.table = tf.Variable(tf.ones((5, 2)))
        self.factors = tf.Variable([1.0, 2.0])

    def __call__(self, rows):
        return tf.reduce_sum(tf.gather(self.table, rows) * self.factors)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_those_of_the_variables_before_the_update(compiled):
    counts = np.array([[1], [3], [0], [1], [1]])  # how often each row is asked for below
    for _ in range(12):
        model = Product()
        step = amp.train_step(
            lambda model, rows: model(rows),
            model,
            keras.optimizers.SGD(1.0),
            policy="O0",
            accumulate=3,
            compile=compiled,
        )
        for rows in ([1, 1], [1, 3], [0, 4]):
            step(np.array(rows))
        expected = 1 - counts * np.array([1.0, 2.0]) / 3
        np.testing.assert_allclose(model.table.numpy(), expected, rtol=1e-6)
