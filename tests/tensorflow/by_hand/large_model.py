"""O2 without masters, the joint norm at most 0.05, Paddle's scaler from 32768."""

import keras

keras.config.set_dtype_policy("mixed_float16")


def optimizer(inner):
    inner.global_clipnorm = 0.05
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=32768.0)
