"""Float32 for a thousand steps, then O1: a schedule by steps."""

import paddle

scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
global_step = 0
for batch in loader:
    with paddle.amp.auto_cast(enable=global_step >= 1000, level="O1"):
        loss = model(batch)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    global_step += 1
