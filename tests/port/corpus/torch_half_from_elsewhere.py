import torch
from nets import build

model = build().cuda()
model.half()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader:
    loss = torch.nn.functional.cross_entropy(model(x.half()).float(), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
