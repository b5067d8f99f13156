import numpy as np
import paddle
import paddle.nn as nn


class RMSNorm(nn.Layer):
    pass


model = build()
optimizer = paddle.optimizer.AdamW(parameters=model.parameters(), grad_clip=nn.ClipGradByGlobalNorm(clip_norm=5))
model, optimizer = paddle.amp.decorate(
    model, optimizer, 'O2', dtype='float16', master_weight=False, save_dtype=np.dtype('float32'),
    excluded_layers=[nn.LayerNorm, RMSNorm, model.decoder.head])
scaler = paddle.amp.GradScaler(True, 2 ** 10, 4.0, 0.25, 100, 3)
for x, y in loader:
    with paddle.amp.auto_cast(True, level='O2', dtype=paddle.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.minimize(optimizer, scaler.scale(loss))
