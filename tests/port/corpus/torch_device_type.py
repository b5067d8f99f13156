import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true", default=False)
args = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
grad_scaler = torch.cuda.amp.GradScaler(enabled=args.amp)
for images, masks in loader:
    images = images.to(device=device, dtype=torch.float32)
    with torch.autocast(device.type if device.type != "mps" else "cpu", enabled=args.amp):
        loss = criterion(model(images), masks)
    optimizer.zero_grad(set_to_none=True)
    grad_scaler.scale(loss).backward()
    grad_scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    grad_scaler.step(optimizer)
    grad_scaler.update()
