"""The region of an evaluation takes the default of the level before anything asks whether it is O2."""

import paddle
from elsewhere import build


class Trainer:
    def __init__(self, config):
        self.level = config.get("level", "O1")
        self.model, self.optimizer = build(config)
        if self.level == "O2":
            self.model, self.optimizer = paddle.amp.decorate(self.model, self.optimizer, level="O2")

    def train(self, loader):
        scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
        for images in loader:
            with self.model.no_sync(), paddle.amp.auto_cast(level=self.level):
                loss = self.model(images)
            scaler.scale(loss).backward()
            scaler.step(self.optimizer)
            scaler.update()

    def evaluate(self, images):
        with paddle.no_grad(), paddle.amp.auto_cast(level=self.level):
            return self.model(images)
