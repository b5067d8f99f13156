"""A scaler with a rule of its own."""

import torch
class Mine(torch.amp.GradScaler):
    def update(self, *given):
        super().update(*given)
        if self._scale > 2**20:
            self._scale = 2**20
    def state_dict(self):
        return {}
scaler = Mine(model)
