import paddle
from paddle.nn.utils import clip_grad_norm_

model = paddle.Model
optimizer = paddle.optimizer.AdamW(parameters=net.parameters())
scaler = paddle.amp.GradScaler(init_loss_scaling=32768)
for batch in loader:
    with paddle.amp.auto_cast(dtype="float16"):
        loss = net(batch)
    scaler.scale(loss).backward()
    clip_grad_norm_(net.parameters(), max_norm=1.0)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    optimizer.clear_grad()
