import torch
from torch.nn.utils import clip_grad_norm_

scaler = torch.amp.GradScaler()
for i, (x, y) in enumerate(dl):
    with torch.amp.autocast("cuda", torch.float16):
        loss = f(net(x), y)
    scaler.scale(loss).backward()
    clip_grad_norm_(net.parameters(), 1.0)
    scaler.unscale_(opt)
    log(grad_norm(net))
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
