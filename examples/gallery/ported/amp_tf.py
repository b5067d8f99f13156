"""Mixed precision for TensorFlow and Keras 3. Import this file before the model is made.

    optimizer = amp_tf.optimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, loss)  # and fit; or in a loop of your own:
    scaled_loss = optimizer.scale_loss(loss)  # under the tape, of each batch
    optimizer.apply(tape.gradient(scaled_loss, weights), weights)

The weights are model.trainable_variables. What optimizer.variables holds is saved with the model.
"""

import keras
from keras import ops

INIT_SCALE = 2.0**24  # paddle_train.py:55 init_loss_scaling=2.0**24
GROWTH_FACTOR = 2.0  # default of paddle.amp.GradScaler
BACKOFF_FACTOR = 0.5  # default of paddle.amp.GradScaler
GROWTH_INTERVAL = 100  # paddle_train.py:55 incr_every_n_steps=100
BACKOFF_INTERVAL = 2  # paddle_train.py:55 decr_every_n_nan_or_inf=2
CLIP_NORM = 1.0  # paddle_train.py:52 clip_norm=1.0
keras.config.set_dtype_policy("mixed_float16")  # paddle_train.py:60 level="O1"


@keras.saving.register_keras_serializable()
class LossScaler(keras.optimizers.LossScaleOptimizer):
    """Skips steps whose gradients overflow; the loss scale grows and shrinks by the numbers above."""

    def build(self, variables):
        super().build(variables)
        self.overflows = self.add_variable((), "zeros", "int32", name="overflows")

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        finite = self.check_finite(grads)
        grads = [g if g is None else ops.divide(g, self.dynamic_scale) for g in grads]
        ops.cond(
            finite, lambda: self.inner_optimizer.apply(grads, trainable_variables), lambda: None
        )
        steps = ops.where(finite, self.step_counter + 1, 0)
        grows = ops.equal(steps, GROWTH_INTERVAL)
        overflows = ops.where(finite, 0, self.overflows + 1)
        shrinks = ops.equal(overflows, BACKOFF_INTERVAL)
        larger = self.dynamic_scale * GROWTH_FACTOR
        smaller = self.dynamic_scale * BACKOFF_FACTOR
        scale = ops.where(grows, larger, self.dynamic_scale)
        self.dynamic_scale.assign(ops.where(shrinks, smaller, scale))
        self.step_counter.assign(ops.where(grows, 0, steps))
        self.overflows.assign(ops.where(shrinks, 0, overflows))


def optimizer(inner):
    """``inner``, an optimizer of Keras, with the recipe's loss scaling."""
    inner.global_clipnorm = CLIP_NORM
    return LossScaler(inner, INIT_SCALE)
