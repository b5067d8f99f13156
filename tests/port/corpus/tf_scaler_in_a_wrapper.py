"""A scaler in an unknown wrapper is used."""

import tensorflow as tf, outside
optimizer = tf.train.experimental.MixedPrecisionLossScaleOptimizer(
    tf.train.AdamOptimizer(1e-3), "dynamic"
)
optimizer = outside.wrap(optimizer)
optimizer.minimize(loss)
