import paddle
from paddle.amp import auto_cast

LEVELS = {"default": "OD", "pure": "O2"}
for x in loader:
    with auto_cast(level=LEVELS["default"], dtype="bfloat16"):
        loss = student(x)
    loss.backward()
    optimizer.step()
