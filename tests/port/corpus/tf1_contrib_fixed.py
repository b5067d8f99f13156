import tensorflow as tf
from tensorflow.contrib.mixed_precision import FixedLossScaleManager, LossScaleOptimizer

manager = FixedLossScaleManager(128)
optimizer = LossScaleOptimizer(tf.train.MomentumOptimizer(0.1, 0.9), manager)
