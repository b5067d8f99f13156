"""Two networks that train against each other: a scaler for each optimizer, in a list."""

import paddle


class Adversarial:
    def __init__(self, networks, optimizers):
        self.networks, self.optimizers = networks, optimizers
        self.scalers = [paddle.amp.GradScaler(init_loss_scaling=512) for _ in optimizers]

    def step(self, image):
        for i in range(len(self.networks)):
            with paddle.amp.auto_cast(level="O1"):
                loss = self.networks[i](image).mean()
            self.scalers[i].minimize(self.optimizers[i], self.scalers[i].scale(loss))
