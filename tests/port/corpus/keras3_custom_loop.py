import os
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras as K
import tensorflow as tf

INITIAL_SCALE = 2 ** 12
CONFIG = {"growth": 500, "clip": 1.0}

K.config.set_dtype_policy("mixed_float16")

inner = K.optimizers.AdamW(3e-4, weight_decay=0.1, global_clipnorm=CONFIG["clip"])
optimizer = K.optimizers.LossScaleOptimizer(
    inner, initial_scale=INITIAL_SCALE, dynamic_growth_steps=CONFIG["growth"]
)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
        scaled = optimizer.scale_loss(loss)
    grads = tape.gradient(scaled, model.trainable_variables)
    optimizer.apply(grads, model.trainable_variables)
    return loss
