import paddle
from nets import build

model = paddle.amp.decorate(build(), level="O2", dtype="bfloat16")
opt = paddle.optimizer.AdamW(1e-3, parameters=model.parameters(), multi_precision=True)
for x, y in batches():
    with paddle.amp.auto_cast(level="O2", dtype="bfloat16"):
        loss = model(x, y)
    loss.backward()
    opt.step()
    opt.clear_grad()
