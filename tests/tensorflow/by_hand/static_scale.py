"""O1 with a fixed scale of 128; what overflows is skipped."""

import keras
from keras import ops

keras.config.set_dtype_policy("mixed_float16")


@keras.saving.register_keras_serializable("by_hand")
class StaticScale(keras.optimizers.LossScaleOptimizer):
    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        grads_ok = self.check_finite(grads)
        unscaled = [None if g is None else ops.divide(g, self.initial_scale) for g in grads]
        ops.cond(
            grads_ok,
            lambda: self.inner_optimizer.apply(unscaled, trainable_variables),
            lambda: None,
        )


def optimizer(inner):
    return StaticScale(inner, initial_scale=128.0)
