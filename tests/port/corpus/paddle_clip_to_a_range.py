import paddle

net = Net()
clip = paddle.nn.ClipGradByValue(min=-1, max=5)
opt = paddle.optimizer.SGD(learning_rate=0.1, parameters=net.parameters(), grad_clip=clip)
scaler = paddle.amp.GradScaler(init_loss_scaling=2**10)
for x, y in loader:
    with paddle.amp.auto_cast(level="O1"):
        loss = paddle.nn.functional.mse_loss(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    opt.clear_grad()
