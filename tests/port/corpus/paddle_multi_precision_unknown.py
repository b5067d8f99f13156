import paddle
from settings import cfg
from nets import build

model = paddle.amp.decorate(build(), level="O2")
opt = paddle.optimizer.Adam(parameters=model.parameters(), multi_precision=cfg.masters)
scaler = paddle.amp.GradScaler(init_loss_scaling=1024.0)
for x, y in batches():
    with paddle.amp.auto_cast(level="O2"):
        loss = model(x, y)
    scaler.minimize(opt, scaler.scale(loss))
    opt.clear_grad()
