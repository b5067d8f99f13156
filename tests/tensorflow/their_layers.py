"""Functions as a package has them that knows nothing of ampbridge."""

import tensorflow as tf

SEEN: list[str] = []
"""In which dtypes they computed, forward and backward."""


def fused_projection(x, weight):
    """A product and an exponential, which have other rules by themselves; with a branch on values."""
    product = tf.matmul(x, weight)
    SEEN.append(product.dtype.name)
    if tf.reduce_any(tf.cast(product, tf.float32) > 1e9):
        product = product / 2
    return tf.exp(product)


@tf.custom_gradient
def twice(x):
    SEEN.append(x.dtype.name)

    def gradient(upstream):
        SEEN.append(upstream.dtype.name)
        return upstream * 2

    return x * 2, gradient
