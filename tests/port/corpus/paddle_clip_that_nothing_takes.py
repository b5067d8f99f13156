import paddle

G = Generator()
clip = paddle.nn.ClipGradByValue(min=-0.01, max=0.01)
# opt = paddle.optimizer.SGD(lr, parameters=G.parameters(), grad_clip=clip)
opt = paddle.optimizer.Adam(2e-4, parameters=G.parameters())
scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
for real in loader:
    with paddle.amp.auto_cast():
        loss = criterion(G(real), real)
    scaler.scale(loss).backward()
    scaler.minimize(opt, scaler.scale(loss))
    opt.clear_grad()
