"""A model is data, a network, and how it is trained."""

import time

import numpy as np
import tensorflow as tf

from . import config

LOSSES = {
    "MSE": lambda y_true, y_pred: tf.math.reduce_mean(tf.math.square(y_true - y_pred)),
    "MAE": lambda y_true, y_pred: tf.math.reduce_mean(tf.math.abs(y_true - y_pred)),
}


def _get_learningrate(lr, decay):
    if decay is None:
        return lr
    if decay[0] == "inverse time":
        return tf.keras.optimizers.schedules.InverseTimeDecay(lr, decay[1], decay[2])
    if decay[0] == "cosine":
        return tf.keras.optimizers.schedules.CosineDecay(lr, decay[1], alpha=decay[2])
    raise NotImplementedError(f"{decay[0]} learning rate decay")


def get_optimizer(optimizer, learning_rate=None, decay=None):
    """Retrieves a Keras Optimizer instance."""
    if isinstance(optimizer, tf.keras.optimizers.Optimizer):
        return optimizer
    if learning_rate is None:
        raise ValueError(f"No learning rate for {optimizer}.")
    lr_schedule = _get_learningrate(learning_rate, decay)
    if optimizer == "adam":
        return tf.keras.optimizers.Adam(learning_rate=lr_schedule)
    if optimizer == "nadam":
        return tf.keras.optimizers.Nadam(learning_rate=lr_schedule)
    if optimizer == "sgd":
        return tf.keras.optimizers.SGD(learning_rate=lr_schedule)
    raise NotImplementedError(f"{optimizer} to be implemented.")


class Model:
    def __init__(self, data, net):
        self.data = data
        self.net = net
        self.train_step = None
        self.outputs = None

    def compile(self, optimizer, lr=None, loss="MSE", decay=None, loss_weights=None, verbose=1):
        """Configures the model for training."""
        if verbose > 0:
            print("Compiling model...")
        loss_fn = LOSSES[loss]
        opt = get_optimizer(optimizer, learning_rate=lr, decay=decay)

        @tf.function
        def outputs(inputs):
            return self.net(inputs, training=False)

        def outputs_losses_train():
            losses = tf.convert_to_tensor(self.data.losses_train(self.net, loss_fn))
            if loss_weights is not None:
                losses *= tf.constant(loss_weights, losses.dtype)
            return losses

        @tf.function
        def train_step():
            with tf.GradientTape() as tape:
                losses = outputs_losses_train()
                total_loss = tf.math.reduce_sum(losses)
            trainable_variables = self.net.trainable_variables
            grads = tape.gradient(total_loss, trainable_variables)
            opt.apply_gradients(zip(grads, trainable_variables))
            return losses

        self.outputs = outputs
        self.train_step = train_step

    def train(self, iterations, display_every=1000):
        begin, history = time.time(), []
        for i in range(iterations):
            losses = self.train_step()
            if i % display_every == 0:
                history.append(losses.numpy())
                print(i, history[-1], f"{time.time() - begin:.1f} s")
        return history

    def predict(self, x):
        return self.outputs(tf.constant(x.astype(config.real(np)))).numpy()
