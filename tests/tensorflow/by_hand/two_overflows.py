"""O1, decr_ratio 0.8 after 2 overflows in a row, incr_ratio 2 after 4 finite steps."""

import keras
from keras import ops

keras.config.set_dtype_policy("mixed_float16")


@keras.saving.register_keras_serializable("by_hand")
class PaddleScaler(keras.optimizers.LossScaleOptimizer):
    def build(self, variables):
        super().build(variables)
        self.bad = self.add_variable((), "zeros", "int32", name="bad")

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        finite = self.check_finite(grads)
        unscaled = [None if g is None else ops.divide(g, self.dynamic_scale) for g in grads]
        ops.cond(
            finite, lambda: self.inner_optimizer.apply(unscaled, trainable_variables), lambda: None
        )
        good = ops.where(finite, self.step_counter + 1, 0)
        bad = ops.where(finite, 0, self.bad + 1)
        scale = ops.where(good == 4, self.dynamic_scale * 2.0, self.dynamic_scale)
        self.dynamic_scale.assign(ops.where(bad == 2, scale * 0.8, scale))
        self.step_counter.assign(ops.where(good == 4, 0, good))
        self.bad.assign(ops.where(bad == 2, 0, bad))


def optimizer(inner):
    return PaddleScaler(inner, initial_scale=128.0)
