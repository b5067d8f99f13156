"""TensorFlow 2.1 to 2.3: the policy carries the loss scale."""

import tensorflow as tf

policy = tf.keras.mixed_precision.experimental.Policy('mixed_float16', loss_scale=1024.)
tf.keras.mixed_precision.experimental.set_policy(policy)

model = tf.keras.Sequential([tf.keras.layers.Dense(10)])
model.compile(tf.keras.optimizers.SGD(0.1), loss='mse')
