import tensorflow as tf

manager = tf.contrib.mixed_precision.ExponentialUpdateLossScaleManager(1024, 500)
optimizer = tf.contrib.mixed_precision.LossScaleOptimizer(tf.train.AdamOptimizer(), manager)
