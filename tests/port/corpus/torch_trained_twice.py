"""A function that trains, called twice: settings of the two are not mixed."""

import torch


def train(scale, enabled):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=scale, enabled=enabled)
    for x in data:
        with torch.autocast("cuda", dtype=torch.float16, enabled=enabled):
            loss = model(x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


train(1024.0, True)
train(64.0, False)
