"""O1, bilinear interpolation in float32 besides, the norm of each gradient at most 0.01."""

import keras

keras.config.set_dtype_policy("mixed_float16")


def set_precision(model):
    for layer in model._flatten_layers():
        if isinstance(layer, (keras.layers.UpSampling2D, keras.layers.Resizing)):
            layer.dtype_policy = "float32"


def optimizer(inner):
    inner.clipnorm = 0.01
    return keras.optimizers.LossScaleOptimizer(inner, 1024.0, 2000)
