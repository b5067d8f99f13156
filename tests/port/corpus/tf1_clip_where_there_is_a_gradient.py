import tensorflow as tf

opt = tf.train.AdamOptimizer(5e-4, beta1=0.5)
opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)
grads = opt.compute_gradients(cost)
for i, (g, v) in enumerate(grads):
    if g is not None:
        grads[i] = (tf.clip_by_norm(g, 5), v)  # clip gradients
train_op = opt.apply_gradients(grads)
