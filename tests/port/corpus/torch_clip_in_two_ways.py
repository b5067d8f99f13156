import torch

scaler = torch.cuda.amp.GradScaler()
for images, labels in loader:
    with torch.cuda.amp.autocast():
        loss = criterion(net(images), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_value_(net.parameters(), 0.5)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 2.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=True)
