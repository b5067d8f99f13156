"""Attributes that something of another file may set after their defaults."""

import paddle
from tools import BaseConfig, merge_options


class Config(BaseConfig):
    def __init__(self, options):
        self.amp = True
        self.level = "O2"
        self.__dict__.update(options)


SCALER = {"init": 512.0}
merge_options(SCALER)
config = Config(load())
with paddle.amp.auto_cast(enable=config.amp, level=config.level):
    loss = model(x)
scaler = paddle.amp.GradScaler(enable=config.amp, init_loss_scaling=SCALER["init"])
