"""Nothing calls the class. Its region and its epoch have defaults that its own calls never leave."""

import contextlib

import paddle
from elsewhere import batches, build


class Precision:
    def __init__(self, settings):
        self.mixed = settings.mixed
        self.scaler = paddle.amp.GradScaler(init_loss_scaling=512.0) if self.mixed else None

    def region(self, enable=False, level="O2"):
        return paddle.amp.auto_cast(level=level) if enable else contextlib.nullcontext()

    def epoch(self, model, optimizer, accumulated=1):
        for i, batch in enumerate(batches()):
            with self.region(self.mixed, "O1"):
                loss = model(batch) / accumulated
            if self.mixed:
                self.scaler.scale(loss).backward()
            else:
                loss.backward()
            if (i + 1) % accumulated:
                continue
            if self.mixed:
                self.scaler.step(optimizer)
                self.scaler.update()
            else:
                optimizer.step()
            optimizer.clear_grad()

    def train(self):
        model, optimizer = build()
        for _ in range(10):
            self.epoch(model, optimizer, accumulated=4)
