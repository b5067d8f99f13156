"""The scaler is made here, the region is entered in the file of the loop."""

import paddle
from mylib.loop import train


def main(model, optimizer, loader):
    scaler = paddle.amp.GradScaler(init_loss_scaling=4096.0)
    train(model, optimizer, loader, scaler)
