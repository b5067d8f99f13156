"""A subclass of LossScaleOptimizer that scales in a way of its own."""

import keras


class Halved(keras.optimizers.LossScaleOptimizer):
    def scale_loss(self, loss):
        return super().scale_loss(loss) / 2


keras.config.set_dtype_policy("mixed_float16")
model = make_model()
optimizer = Halved(keras.optimizers.Adam(1e-3), initial_scale=2048.0)
model.compile(optimizer, "mse")
model.fit(x, y)
