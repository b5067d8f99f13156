import paddle

SCALE = 1 << 14
scaler = paddle.amp.GradScaler(enable=True)
scaler.set_init_loss_scaling(SCALE)
scaler.set_incr_every_n_steps(int(1e3))
scaler.set_decr_ratio(1 / 4)
with paddle.amp.auto_cast(level="O" + str(1)):
    loss = model(x)
scaler.minimize(optimizer, scaler.scale(loss))
