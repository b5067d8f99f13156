"""Settings are names of another module of the project."""

import paddle

from .settings import DTYPE, INIT_SCALE, USE_AMP


def train(model, optimizer, loader):
    scaler = paddle.amp.GradScaler(enable=USE_AMP, init_loss_scaling=INIT_SCALE)
    for image in loader:
        with paddle.amp.auto_cast(USE_AMP, dtype="bfloat16" if DTYPE == "bf16" else "float16"):
            loss = model(image).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
