import tensorflow as tf

SCALE = 8.0 * 16
opt = tf.compat.v1.train.experimental.enable_mixed_precision_graph_rewrite(
    tf.compat.v1.train.AdamOptimizer(1e-4), loss_scale=SCALE)
