"""The epoch stands above the worker that calls it, and the worker is only handed on."""

import paddle
from elsewhere import build, options


def epoch(model, optimizer, loader, accumulated=1, amp=False):
    scaler = paddle.amp.GradScaler(enable=amp, init_loss_scaling=2048.0)
    for i, images in enumerate(loader):
        with paddle.amp.auto_cast(enable=amp):
            loss = model(images) / accumulated
        scaler.scale(loss).backward()
        if (i + 1) % accumulated == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.clear_grad()


def worker(*arguments):
    settings = arguments[0]
    model, optimizer, loader = build(settings)
    for _ in range(settings.epochs):
        epoch(model, optimizer, loader, accumulated=settings.accumulated, amp=True)


if __name__ == "__main__":
    paddle.distributed.spawn(worker, args=(options(),))
