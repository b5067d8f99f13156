"""O1, four micro-batches a step, the norm of each gradient at most 0.02, Paddle's scaler from 1024."""

import keras
import tensorflow as tf
from keras import ops

keras.config.set_dtype_policy("mixed_float16")
ACCUMULATE = 4


@keras.saving.register_keras_serializable("by_hand")
class PaddleScaler(keras.optimizers.LossScaleOptimizer):
    """One step of four micro-batches; an overflow in any of them drops the step."""

    def build(self, variables):
        super().build(variables)
        self.micro = self.add_variable((), "zeros", "int32", name="micro")
        self.sums = [self.add_variable(v.shape, "zeros", "float32") for v in variables]

    def scale_loss(self, loss):
        return super().scale_loss(loss / ACCUMULATE)

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        for s, g in zip(self.sums, grads, strict=True):
            s.assign_add(tf.convert_to_tensor(g))
        self.micro.assign_add(1)
        ops.cond(self.micro % ACCUMULATE == 0, lambda: self.step(trainable_variables), lambda: None)

    def step(self, variables):
        super().apply([tf.identity(s) for s in self.sums], variables)
        for s in self.sums:
            s.assign(tf.zeros_like(s))


def optimizer(inner):
    inner.clipnorm = 0.02
    return PaddleScaler(inner, initial_scale=1024.0, dynamic_growth_steps=2000)
