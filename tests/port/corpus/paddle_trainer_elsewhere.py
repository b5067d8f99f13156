"""The same, made by another file: its parameters have their defaults, which its callers may change."""
import paddle


class Trainer:
    def __init__(self, model, use_amp: bool, level="O1", scale=1024.0):
        self.model, self.use_amp, self.level = model, use_amp, level
        self.scaler = paddle.amp.GradScaler(use_amp, scale)

    def step(self, batch):
        with paddle.amp.auto_cast(enable=self.use_amp, level=self.level):
            loss = self.model(batch)
        self.scaler.scale(loss).backward()
        self.scaler.minimize(self.optimizer, loss)
