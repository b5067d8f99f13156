import tensorflow as tf

opt = tf.train.AdamOptimizer(learning_rate=1e-3)
opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)
gvs = opt.compute_gradients(cost)
capped_gvs = [(tf.clip_by_value(grad, -5., 5.), var) for grad, var in gvs if grad is not None]
train_op = opt.apply_gradients(capped_gvs)
