"""A model in float16 is not the one whose gradients a scaler unscales."""

import torch
from elsewhere import smart_autocast
scaler = torch.cuda.amp.GradScaler()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    optimizer.zero_grad()
    with smart_autocast():
        loss = model(batch)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
model.half()
