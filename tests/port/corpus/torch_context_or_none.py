"""Without a GPU no region opens, and the scaler is off."""
from contextlib import nullcontext

import torch

on_gpu = torch.cuda.is_available()
context = torch.autocast("cuda") if on_gpu else nullcontext()
scaler = torch.amp.GradScaler(enabled=on_gpu)

for batch in loader:
    with context:
        loss = model(batch)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
