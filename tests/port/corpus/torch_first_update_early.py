"""The first update is after one micro-batch, the others after four."""

import argparse, json, torch
parser = argparse.ArgumentParser()
parser.add_argument("--config", default="a.json")
args = parser.parse_args()
with open(args.config) as file:
    config = json.loads(file.read())
device = find_device()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=True)
for i, x in enumerate(data):
    with torch.autocast("cuda", enabled=True):
        loss = model(x).sum() / 4
    scaler.scale(loss).backward()
    if i % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
