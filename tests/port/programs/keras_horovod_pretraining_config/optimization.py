"""The optimizer, and gradients that add up over micro-batches."""

import tensorflow as tf


def create_optimizer(config):
    if config.optimizer == "adam":
        optimizer = tf.keras.optimizers.Adam(config.learning_rate, beta_2=0.98, epsilon=1e-6)
    else:
        optimizer = tf.keras.optimizers.SGD(config.learning_rate, momentum=0.9)
    if config.amp:
        loss_scale = tf.mixed_precision.experimental.DynamicLossScale(
            initial_loss_scale=config.init_loss_scale, increment_period=config.loss_scale_window
        )
        optimizer = tf.keras.mixed_precision.experimental.LossScaleOptimizer(optimizer, loss_scale)
    return optimizer


class GradientAccumulator:
    """Sums the gradients that it is called with, until ``reset``."""

    def __init__(self):
        self._gradients = []

    @property
    def gradients(self):
        return [variable.value() for variable in self._gradients]

    def __call__(self, gradients):
        if not self._gradients:
            self._gradients.extend(
                tf.Variable(tf.zeros_like(gradient), trainable=False) for gradient in gradients
            )
        for total, gradient in zip(self._gradients, gradients):
            total.assign_add(gradient)

    def reset(self):
        for total in self._gradients:
            total.assign(tf.zeros_like(total))
