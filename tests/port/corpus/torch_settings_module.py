"""Device and dtype are settings of another module; a layer of one is known by its name."""

import torch
from project.config import cfg


def train(model, optimizer, loader):
    scaler = torch.amp.GradScaler(cfg.device, init_scale=cfg.init_scale)
    for image in loader:
        with torch.autocast(cfg.device, dtype=cfg.dtype):
            loss = model(image).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
