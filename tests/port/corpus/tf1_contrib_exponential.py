import tensorflow as tf

from model import build_graph

loss = build_graph(dtype=tf.float16)
manager = tf.contrib.mixed_precision.ExponentialUpdateLossScaleManager(
    init_loss_scale=2**32, incr_every_n_steps=1000, decr_every_n_nan_or_inf=1, decr_ratio=0.5)
optimizer = tf.contrib.mixed_precision.LossScaleOptimizer(tf.train.AdamOptimizer(1e-3), manager)
train_op = optimizer.minimize(loss)
