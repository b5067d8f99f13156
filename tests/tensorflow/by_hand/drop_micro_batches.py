"""O1, three micro-batches a step, of which each that overflows is dropped alone."""

import keras

keras.config.set_dtype_policy("mixed_float16")


def optimizer(inner):
    inner.gradient_accumulation_steps = 3
    return keras.optimizers.LossScaleOptimizer(inner, 1024.0, 4)
