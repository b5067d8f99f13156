import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true", help="mixed precision")
args = parser.parse_args()

scaler = torch.cuda.amp.GradScaler(enabled=args.amp)
for x, y in loader:
    with torch.cuda.amp.autocast(enabled=args.amp):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
