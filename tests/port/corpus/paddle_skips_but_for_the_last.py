"""Micro-batches go on to the next, but for each fourth and the last of an epoch."""

import paddle
from elsewhere import loader, model, optimizer

scaler = paddle.amp.GradScaler(init_loss_scaling=128.0)
for number, batch in enumerate(loader):
    with paddle.amp.auto_cast(level="O1"):
        loss = model(batch) / 4
    scaled = scaler.scale(loss)
    scaled.backward()
    if (number + 1) % 4 != 0 and (number + 1) != len(loader):
        continue
    scaler.minimize(optimizer, scaled)
    optimizer.clear_grad()
