import torch

scaler = torch.cuda.amp.GradScaler()
for obs, target in replay:
    with torch.cuda.amp.autocast():
        loss = criterion(net(obs), target)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    for p in net.parameters():
        if p.grad is not None:
            p.grad.clamp_(-0.5, 0.5)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
