"""The static decorate of today, by level: GradScaler's defaults."""
import paddle

paddle.enable_static()
optimizer = paddle.static.amp.decorate(
    paddle.optimizer.AdamW(1e-4), level="o2", dtype="float16", master_grad=True)
optimizer.minimize(loss)
optimizer.amp_init(place, scope=paddle.static.global_scope())
