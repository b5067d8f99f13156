import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 10))

    def forward(self, x):
        return self.layers(x)


model = Net().cuda()
model.half()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x.half()), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
