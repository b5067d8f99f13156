"""Keras 2: dynamic, initial_scale and dynamic_growth_steps by position; a scale that stays."""

import tensorflow.keras.mixed_precision as mp
from tensorflow.keras.optimizers import SGD as Momentum

mp.set_global_policy(mp.Policy("mixed_float16"))
opt = mp.LossScaleOptimizer(Momentum(0.1, momentum=0.9), False, 128)
