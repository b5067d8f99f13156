"""torch's own example with AMP: the device as it is found, a version check, float16 or bfloat16 by an option."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
parser.add_argument("--amp-dtype", default="float16", type=str)
parser.add_argument("--clip-grad", default=1.0, type=float)
parser.add_argument("--device", default="cuda", type=str)
parser.add_argument("--evaluate", action="store_true")
args = parser.parse_args()

device = torch.device(args.device if torch.cuda.is_available() else "cpu")
amp_dtype = torch.bfloat16 if args.amp_dtype == "bfloat16" else torch.float16
if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp and device.type == "cuda")
else:
    scaler = torch.cuda.amp.GradScaler(enabled=args.amp and device.type == "cuda")


def validate(loader, model):
    with torch.no_grad():
        for image, target in loader:
            with torch.autocast(device.type, dtype=amp_dtype, enabled=args.amp):
                output = model(image.to(device))


def train(loader, model, criterion, optimizer):
    for image, target in loader:
        with torch.autocast(device.type, dtype=amp_dtype, enabled=args.amp):
            loss = criterion(model(image.to(device)), target.to(device))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        scaler.step(optimizer)
        scaler.update()


if args.evaluate:
    validate(val_loader, model)
else:
    train(train_loader, model, criterion, optimizer)
