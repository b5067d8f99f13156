"""A loop that leaves the loss to a scaler which scales none by itself."""

import tensorflow as tf

tf.keras.mixed_precision.set_global_policy("mixed_float16")
model = make_model()
optimizer = tf.keras.mixed_precision.LossScaleOptimizer(
    tf.keras.optimizers.Adam(2e-4), dynamic_growth_steps=512
)
for x, y in data:
    with tf.GradientTape() as tape:
        loss = loss_of(model(x), y)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
