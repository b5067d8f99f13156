"""A class: settings on self, the context from a method, the step in another."""
import contextlib

import paddle


class Trainer:
    dtype = "float16"

    def __init__(self, model, optimizer, use_amp=True, level="O1", scale=1024):
        self.model = model
        self.optimizer = optimizer
        self.use_amp = use_amp
        self.amp_level = level
        self.amp_kwargs = {"custom_black_list": ["softmax"], "dtype": self.dtype}
        self.global_step = 0
        self.scaler = None
        if self.use_amp:
            self.scaler = paddle.amp.GradScaler(init_loss_scaling=scale)

    def autocast(self):
        if not self.use_amp:
            return contextlib.nullcontext()
        return paddle.amp.auto_cast(level=self.amp_level, **self.amp_kwargs)

    def train(self, loader):
        for batch in loader:
            with self.autocast():
                loss = self.model(batch)
            self.backward(loss)

    def backward(self, loss):
        self.global_step += 1
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
            return
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


trainer = Trainer(model, optimizer, level="O2", scale=2 ** 12)
trainer.train(loader)
