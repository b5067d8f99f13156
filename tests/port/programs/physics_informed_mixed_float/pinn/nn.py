"""Networks."""

import tensorflow as tf

INITIALIZERS = {
    "Glorot normal": "glorot_normal",
    "Glorot uniform": "glorot_uniform",
    "He normal": "he_normal",
}


class FNN(tf.keras.Model):
    """Fully-connected neural network."""

    def __init__(self, layer_sizes, activation, kernel_initializer, regularization=None):
        super().__init__()
        self._input_transform = None
        initializer = INITIALIZERS[kernel_initializer]
        self.denses = [
            tf.keras.layers.Dense(
                units, activation=activation, kernel_initializer=initializer, kernel_regularizer=regularization)
            for units in layer_sizes[1:-1]
        ]
        self.denses.append(tf.keras.layers.Dense(layer_sizes[-1], kernel_initializer=initializer))

    def apply_feature_transform(self, transform):
        self._input_transform = transform

    def call(self, inputs, training=False):
        y = inputs
        if self._input_transform is not None:
            y = self._input_transform(y)
        for f in self.denses:
            y = f(y, training=training)
        return y
