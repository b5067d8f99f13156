"""The regions open in the model, which is another file."""
import torch
from models import build

scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
model = build()
for x, y in loader:
    loss = model(x, y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
