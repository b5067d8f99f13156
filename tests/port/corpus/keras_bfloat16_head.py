import keras
from keras import layers

keras.config.set_dtype_policy("mixed_bfloat16")


class Classifier(keras.Model):
    def __init__(self):
        super().__init__()
        self.trunk = layers.Dense(128, activation="gelu")
        self.norm = layers.LayerNormalization(dtype="float32", name="norm")
        self.head = layers.Dense(10, dtype="float32")

    def call(self, x):
        return self.head(self.norm(self.trunk(x)))


Classifier().compile(optimizer="adam", loss="mse")
