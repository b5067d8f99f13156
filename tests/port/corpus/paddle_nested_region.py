import paddle

scaler = paddle.amp.GradScaler()
for x, y in loader:
    with paddle.amp.auto_cast():
        features = backbone(x)
        with paddle.amp.auto_cast(enable=False):
            loss = criterion(features.astype("float32"), y)
    scaler.scale(loss).backward()
    scaler.minimize(optimizer, loss)
