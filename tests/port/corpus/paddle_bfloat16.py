"""Dynamic scaling switches itself off under bfloat16."""
import paddle as P
from paddle.amp import GradScaler, auto_cast as cast, decorate as deco

DTYPE = "bfloat16"
net, opt = deco(net, opt, "O2", DTYPE, master_grad=True, save_dtype="float32")
grad_scaler = GradScaler(enable=True, init_loss_scaling=2. ** 15)
for x, y in loader:
    with cast(dtype=DTYPE, level="O2"):
        loss = P.nn.functional.cross_entropy(net(x), y)
    grad_scaler.scale(loss).backward()
    grad_scaler.step(opt)
    grad_scaler.update()
    opt.clear_grad()
