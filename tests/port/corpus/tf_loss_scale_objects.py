import tensorflow as tf
from tensorflow.keras.mixed_precision import experimental as mixed_precision

mixed_precision.set_policy("mixed_float16")
loss_scale = tf.mixed_precision.experimental.DynamicLossScale(
    initial_loss_scale=2 ** 10, increment_period=500, multiplier=4.0)
optimizer = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1), loss_scale=loss_scale)
