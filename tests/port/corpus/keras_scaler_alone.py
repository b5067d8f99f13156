"""An optimizer for a model whose policy another file sets; the mode in parentheses, and without."""

import tensorflow as tf


def optimizer_of(params, mode):
    optimizer = tf.keras.optimizers.Adam(1e-3)
    if (mode == "train") and params["mixed_precision"]:
        if mode == "train":
            optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=1024)
    return optimizer
