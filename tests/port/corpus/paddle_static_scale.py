import paddle
from paddle.amp import *

white, black = ["conv2d"], []
black += ["softmax"]
level: str = "O1"
grad_scaler = GradScaler(use_dynamic_loss_scaling=False, init_loss_scaling=float("1024"))
with auto_cast(level=level, custom_white_list=white, custom_black_list=black or None) as context:
    loss = model(x)
scaled = grad_scaler.scale(loss)
scaled.backward()
grad_scaler.step(optimizer)
grad_scaler.update()
