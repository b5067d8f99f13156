"""A policy goes through a function of another file before a layer takes it."""

import keras
from keras import layers
from tools import outside

policy = outside.wrap(keras.DTypePolicy("mixed_bfloat16"))
model = keras.Sequential([layers.Dense(64, dtype=policy), layers.Dense(1)])
model.compile("sgd", "mse")
