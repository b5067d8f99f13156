import keras

settings = {"learning_rate": 1e-3, "gradient_accumulation_steps": 4, "clipnorm": 1.0}


def make_optimizer():
    return keras.optimizers.Adam(**settings)


keras.mixed_precision.set_dtype_policy("mixed_float16")
optimizer = keras.optimizers.LossScaleOptimizer(make_optimizer())
