"""A subclass of LossScaleOptimizer that scales as Keras does."""

import keras


class Named(keras.optimizers.LossScaleOptimizer):
    def get_config(self):
        return {**super().get_config(), "team": "vision"}


keras.config.set_dtype_policy("mixed_float16")
model = make_model()
optimizer = Named(keras.optimizers.Adam(1e-3), initial_scale=2048.0)
model.compile(optimizer, "mse")
model.fit(x, y)
