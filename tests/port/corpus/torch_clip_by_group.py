import torch

scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    with torch.autocast("cuda"):
        loss = loss_fn(net(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for group in optimizer.param_groups:
        torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
    scaler.step(optimizer)
    scaler.update()
