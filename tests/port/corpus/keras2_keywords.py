from tensorflow import keras

kwargs = dict(dynamic=True, initial_scale=1024.0)
kwargs["dynamic_growth_steps"] = 200


class Trainer:
    def __init__(self, precision="mixed_float16"):
        self.policy = keras.mixed_precision.Policy(precision)
        keras.mixed_precision.set_global_policy(self.policy)
        self.optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam(), **kwargs)


Trainer()
