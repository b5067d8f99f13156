"""Mixed precision for TensorFlow and Keras 3. Import this file before the model is made.

    optimizer = amp_tf.optimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, loss)  # and fit; or in a loop of your own:
    scaled_loss = optimizer.scale_loss(loss)  # under the tape, of each micro-batch
    optimizer.apply(tape.gradient(scaled_loss, weights), weights)

The weights are model.trainable_variables. What optimizer.variables holds is saved with the model.
"""

import keras
from keras import ops

INIT_SCALE = 2.0**24  # paddle_train.py:173 init_loss_scaling=cfg["amp"]["init_loss_scaling"]
GROWTH_INTERVAL = 1000  # paddle_train.py:174 incr_every_n_steps=cfg["amp"]["incr_every_n_steps"]
ACCUMULATE = 2  # paddle_train.py:210 (i + 1) % self.accumulate == 0
CLIP_NORM = 1.0  # paddle_train.py:114 clip_norm=settings["clip_norm"]
keras.config.set_dtype_policy("mixed_float16")  # paddle_train.py:187 level=self.level


@keras.saving.register_keras_serializable()
class Accumulating(keras.optimizers.LossScaleOptimizer):
    """A step of ACCUMULATE micro-batches; an overflow in one of them drops the whole step."""

    def build(self, variables):
        super().build(variables)
        self.micro_batches = self.add_variable((), "zeros", "int32", name="micro_batches")
        self.totals = [self.add_variable(v.shape, "zeros", "float32") for v in variables]

    def scale_loss(self, loss):
        return super().scale_loss(loss / ACCUMULATE)

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        for total, grad in zip(self.totals, grads):
            if grad is not None:
                total.assign_add(grad)
        self.micro_batches.assign_add(1)
        last = ops.equal(self.micro_batches % ACCUMULATE, 0)
        ops.cond(last, lambda: self.step(trainable_variables), lambda: None)

    def step(self, variables):
        super().apply([ops.convert_to_tensor(total) for total in self.totals], variables)
        for total in self.totals:
            total.assign(ops.zeros_like(total))


def optimizer(inner):
    """``inner``, an optimizer of Keras, with the recipe's loss scaling."""
    inner.global_clipnorm = CLIP_NORM
    return Accumulating(inner, INIT_SCALE, GROWTH_INTERVAL)
