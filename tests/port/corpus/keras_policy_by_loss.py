"""The dynamic-precision article: the policy of the next epoch, chosen by the loss."""

import tensorflow as tf
from tensorflow.keras import mixed_precision


def adjust_precision(loss):
    if loss > 0.5:
        return mixed_precision.Policy("float32")
    return mixed_precision.Policy("mixed_float16")


optimizer = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam())
for epoch in range(10):
    loss = train_one_epoch(model)
    mixed_precision.set_global_policy(adjust_precision(loss))
