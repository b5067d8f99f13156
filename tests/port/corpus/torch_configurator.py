"""Module-level defaults that a file of settings overrides, as nanoGPT's do."""

import torch

init_scale = 1024.0
exec(open("configurator.py").read())
scaler = torch.amp.GradScaler("cuda", init_scale=init_scale)
with torch.autocast("cuda", dtype=torch.float16):
    loss = model(x)
scaler.scale(loss).backward()
