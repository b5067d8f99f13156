import paddle

scaler = paddle.amp.GradScaler()
model, optimizer = paddle.amp.decorate(models=model, optimizers=optimizer, level="O2")
for x in loader:
    with paddle.amp.auto_cast(level="O2", use_promote=False):
        loss = model(x)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
