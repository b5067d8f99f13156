import torch
from torch import amp

scaler = amp.GradScaler()
for x, y in loader:
    with amp.autocast("cuda"):
        features = backbone(x)
        with amp.autocast("cuda", enabled=False):
            loss = contrastive(features.float(), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
