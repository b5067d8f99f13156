"""A dictionary is updated by one that holds what another file says: nothing of it is certain."""

import paddle
from elsewhere import overrides

settings = dict(init_loss_scaling=512.0)
settings.update({"incr_every_n_steps": 100, **overrides()})
scaler = paddle.amp.GradScaler(**settings)
with paddle.amp.auto_cast():
    loss = model(images)
scaler.scale(loss).backward()
