import keras
import tensorflow as tf

keras.mixed_precision.set_global_policy("mixed_float16")
opt = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam(1e-3))


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = opt.scale_loss(loss_fn(y, model(x)))
    grads = tape.gradient(loss, model.trainable_weights)
    grads, norm = tf.clip_by_global_norm(grads, 1.0)
    opt.apply(grads, model.trainable_weights)


for x, y in ds:
    step(x, y)
