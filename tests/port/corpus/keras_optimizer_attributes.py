"""Clipping and accumulation that an optimizer is given after it was made, here or elsewhere."""

import keras

from training import make_optimizer

keras.config.set_dtype_policy("mixed_float16")
model = make_model()
optimizer = make_optimizer()
optimizer.global_clipnorm = 0.5
optimizer.gradient_accumulation_steps = 4
optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1024.0)
model.compile(optimizer, "mse")
model.fit(x, y)
