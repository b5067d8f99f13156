"""The level stands in a configuration without a default: it has to be asked for."""

import paddle
from paddle.distributed import get_rank

from .settings import load

cfg = load("configs/r50.yml")
scaler = paddle.amp.GradScaler(
    enable=cfg.AMP.enable, init_loss_scaling=cfg.AMP.get("init_loss_scaling", 128.0)
)
if cfg.AMP.enable and cfg.AMP.level == "O2":
    model, optimizer = paddle.amp.decorate(models=model, optimizers=optimizer, level="O2")
for image, label in loader:
    with paddle.amp.auto_cast(enable=cfg.AMP.enable, level=cfg.AMP.level):
        loss = loss_fn(model(image), label)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.clear_grad()
    if get_rank() == 0:
        print(float(loss))
