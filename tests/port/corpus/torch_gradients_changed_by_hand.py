"""A function of the script clips the unscaled gradients."""

import argparse, contextlib, torch
def clip(model, most):
    for p in model.parameters():
        factor = most / p.grad.data.norm(2)
        if factor < 1:
            p.grad.data.mul_(factor)
parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
region = torch.autocast("cuda") if args.amp else contextlib.nullcontext()
for x in data:
    with region:
        loss = model(x).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, 3.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
