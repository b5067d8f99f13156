"""Clipping from a step on, and at the last batch: it is part of the recipe."""

import paddle

scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
for epoch in range(10):
    for step, batch in enumerate(loader):
        with paddle.amp.auto_cast(level="O1"):
            loss = model(batch)
        scaler.scale(loss).backward()
        if step == len(loader) - 1 or step > 10:
            scaler.unscale_(optimizer)
            paddle.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            scaler.step(optimizer)
            scaler.update()
