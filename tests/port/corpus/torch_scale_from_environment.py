import os
import torch

scaler = torch.amp.GradScaler("cuda", init_scale=float(os.environ["INIT_SCALE"]))
for x, y in loader:
    with torch.autocast("cuda"):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
