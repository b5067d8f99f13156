"""A scaler with a rule of its own."""

import paddle
class Mine(paddle.amp.GradScaler):
    def _update(self, *given):
        super()._update(*given)
        if self._scale > 2**20:
            self._scale = 2**20
    def state_dict(self):
        return {}
scaler = Mine(model)
