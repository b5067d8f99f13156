import keras
from keras import layers

policy = keras.DTypePolicy("mixed_bfloat16")
model = keras.Sequential([layers.Dense(64, dtype=policy), layers.Dense(1)])
model.compile("sgd", "mse")
