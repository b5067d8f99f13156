"""O2, Paddle's scaler from 1024, growing every 4 steps."""

import keras

keras.config.set_dtype_policy("mixed_float16")


def optimizer(inner):
    return keras.optimizers.LossScaleOptimizer(inner, 1024.0, dynamic_growth_steps=4)
