"""Clipping under conditions on the loop's index and on no_sync: each step clips."""

import torch


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for index, (x, y) in enumerate(loader):
        if index > 0 and index % 4 == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x, y) / 4
        if index == 0:
            print("first loss", loss)
        scaler.scale(loss).backward()
