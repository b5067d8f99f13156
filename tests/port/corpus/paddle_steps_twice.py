import paddle

model = paddle.vision.models.LeNet()
opt = paddle.optimizer.Adam(parameters=model.parameters())
scaler = paddle.amp.GradScaler(1024)
for batch_id, (x, y) in enumerate(train_loader()):
    with paddle.amp.auto_cast("bfloat16"):
        loss = paddle.nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    opt.step()
    opt.clear_grad()
