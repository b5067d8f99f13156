"""Trained at O2 by decorate alone; one region is without casts, for the pictures of the validation."""

import paddle


def main(config, model, optimizer, loader):
    model, optimizer = paddle.amp.decorate(model, optimizer, level="O2")
    scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
    for image in loader:
        loss = model(image).mean()
        scaler.scale(loss).backward()
        scaler.minimize(optimizer, loss)
    if config.prompt:
        with paddle.amp.auto_cast(enable=False):
            show(model(config.prompt))
