import keras

keras.mixed_precision.set_global_policy("mixed_float16")
model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile("sgd", "mse", auto_scale_loss=False)
keras.mixed_precision.set_global_policy("float32")
ema = keras.Sequential([keras.layers.Dense(4)])
