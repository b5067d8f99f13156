"""The model comes out of another library; Keras scales its loss all the same."""

import keras
from mylib.models import segmentation

keras.mixed_precision.set_global_policy("mixed_float16")
model = segmentation(classes=21)
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
