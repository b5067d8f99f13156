"""Attributes that are set by names from elsewhere may be others."""

import torch
class Config:
    def __init__(self, **given):
        self.scale = 1024.0
        for name, value in load().items():
            setattr(self, name, value)
c = Config()
scaler = torch.amp.GradScaler("cuda", init_scale=c.scale)
for x in data:
    with torch.autocast("cuda"):
        loss = model(x)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
