"""O1, softmax and the layer "head" in float32, numbers of gradients at most 0.01, torch's scaler."""

import keras

keras.config.set_dtype_policy("mixed_float16")


def set_precision(model):
    model.get_layer("head").dtype_policy = "float32"
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Softmax):
            layer.dtype_policy = "float32"


def optimizer(inner):
    inner.clipvalue = 0.01
    return keras.optimizers.LossScaleOptimizer(inner, 2.0**16, 2000)
