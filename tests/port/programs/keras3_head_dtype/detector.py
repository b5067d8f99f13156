"""The layers take their precision one by one; the global policy stays float32."""

from functools import partial

import keras
from keras import layers


def low_precision(name):
    """A policy that computes in ``name`` and keeps float32 variables."""
    return keras.DTypePolicy("float32" if name == "float32" else f"mixed_{name}")


class Detector:
    def __init__(self, width, dtype, head_dtype=None):
        self.width = width
        self.dtype = dtype
        self.head_dtype = head_dtype or dtype

    def backbone(self, x):
        conv = partial(layers.Conv2D, kernel_size=3, padding="same", use_bias=False, dtype=self.dtype)
        for stage in range(3):
            x = conv(self.width << stage, strides=2)(x)
            x = layers.BatchNormalization(dtype=self.dtype)(x)
            x = layers.ReLU(dtype=self.dtype)(x)
        return layers.GlobalAveragePooling2D(dtype=self.dtype)(x)

    def heads(self, features):
        boxes = layers.Dense(4, activation="sigmoid", dtype=self.head_dtype, name="boxes")(features)
        lesion = layers.Dense(1, dtype=self.head_dtype, name="lesion")(features)
        return {"boxes": boxes, "lesion": lesion}

    def functional(self):
        images = keras.Input((None, None, 1))
        return keras.Model(images, self.heads(self.backbone(images)))
