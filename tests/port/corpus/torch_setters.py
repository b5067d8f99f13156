import torch

scaler = torch.amp.GradScaler()
scaler.set_growth_interval(250)
scaler.set_growth_factor(4.0)

for x, y in loader:
    with torch.autocast("cuda", cache_enabled=False):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
