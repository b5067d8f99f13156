"""Attributes set by default, then from the command line, one by one."""

import argparse

import paddle


class Config:
    def __init__(self, **options):
        self.amp = True
        self.level = "O2"
        self.update(options)

    def update(self, options):
        for name, value in options.items():
            setattr(self, name, value)


parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
config = Config(**parser.parse_args().__dict__)
with paddle.amp.auto_cast(enable=config.amp, level=config.level):
    loss = model(x)
scaler = paddle.amp.GradScaler(enable=config.amp)
