"""bfloat16 on TPUs, float16 on GPUs."""

import tensorflow as tf
from tensorflow.keras import mixed_precision


def set_precision(strategy):
    if isinstance(strategy, tf.distribute.TPUStrategy):
        policy = "mixed_bfloat16"
    else:
        policy = "mixed_float16"
    mixed_precision.set_global_policy(policy)


strategy = get_strategy()
set_precision(strategy)
model = build()
opt = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam())
