"""A scaler with a rule of its own."""

import keras
class Mine(keras.optimizers.LossScaleOptimizer):
    def apply(self, *given):
        super().apply(*given)
        if self._scale > 2**20:
            self._scale = 2**20
    def state_dict(self):
        return {}
scaler = Mine(model)
