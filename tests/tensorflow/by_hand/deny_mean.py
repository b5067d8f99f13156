"""O1, means in float32 besides, Paddle's scaler from 1024."""

import keras

keras.config.set_dtype_policy("mixed_float16")


def set_precision(model):
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.GlobalAveragePooling2D):
            layer.dtype_policy = "float32"


def optimizer(inner):
    return keras.optimizers.LossScaleOptimizer(inner, 1024.0, 2000)
