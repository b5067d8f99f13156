"""A scale by an option: it is called after the loss, and does not change with it."""

import torch
from elsewhere import args, loader, loss_fn, model, optimizer

if args.loss_scale > 0:
    scaler = torch.amp.GradScaler("cuda", init_scale=512.0, growth_interval=10**6)
else:
    scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    with torch.autocast("cuda"):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
