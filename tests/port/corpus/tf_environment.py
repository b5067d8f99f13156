import os

os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"

import tensorflow as tf

optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.01)
