"""TensorFlow 1.14 style."""

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

opt = tf.train.MomentumOptimizer(0.1, 0.9)
opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)
train_op = opt.minimize(loss)
