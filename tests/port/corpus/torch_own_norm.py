import torch
from torch import nn


def clip(parameters, largest):
    total = sum(p.grad.detach().norm(2).item() ** 2 for p in parameters) ** 0.5
    for p in parameters:
        p.grad.detach().mul_(largest / (total + 1e-6))


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
