"""Paddle's guide as one file: each section makes the model anew and trains it."""

import paddle

model = SimpleNet()
optimizer = paddle.optimizer.SGD(parameters=model.parameters())
model = paddle.amp.decorate(models=model, level="O2")
scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
for batch in loader:
    with paddle.amp.auto_cast(level="O2", custom_black_list=["softmax"]):
        loss = model(batch)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

model = SimpleNet()
optimizer = paddle.optimizer.SGD(parameters=model.parameters())
for batch in loader:
    with paddle.amp.auto_cast(level="O1"):
        loss = model(batch)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
