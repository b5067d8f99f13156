import torch
from clipping import AdaptiveClipper

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
clipper = AdaptiveClipper(0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    with torch.autocast("cuda"):
        loss = model(x).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clipper(model.parameters())
    scaler.step(optimizer)
    scaler.update()
    print("grad norm", loss.item())
