"""Arguments that have no effect at O1."""
import paddle

model, optimizer = paddle.amp.decorate(model, optimizer, level="O1", master_grad=True, save_dtype="float16")
scaler = paddle.amp.GradScaler()
for x in loader:
    with paddle.amp.auto_cast(use_promote=False):
        loss = model(x)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
