import tensorflow as tf
from tensorflow.keras import mixed_precision

mixed_precision.set_global_policy("mixed_float16")
model = make_model()
optimizer = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.RMSprop(1e-4))


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.losses.mse(y, model(x, training=True)))
        scaled_loss = optimizer.get_scaled_loss(loss)
    scaled_grads = tape.gradient(scaled_loss, model.trainable_variables)
    grads = optimizer.get_unscaled_gradients(scaled_grads)
    grads = [tf.clip_by_norm(g, 0.5) for g in grads]
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return tf.clip_by_value(loss, -100.0, 100.0)


for x, y in dataset:
    train_step(x, y)
