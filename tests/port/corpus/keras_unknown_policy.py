import sys

from tensorflow import keras

config = load_config(sys.argv[1])
keras.mixed_precision.set_global_policy(config.precision)
optimizer = keras.mixed_precision.LossScaleOptimizer(
    keras.optimizers.Adam(), initial_scale=config.scale, dynamic_growth_steps=100)
