import torch

use_amp = args.amp
scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
for x, y in loader:
    with torch.autocast("cuda", enabled=use_amp):
        loss = criterion(net(x), y)
    scaler.scale(loss).backward()
    if use_amp:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
