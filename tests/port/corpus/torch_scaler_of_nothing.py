"""A scaler that scales nothing is no mixed precision."""

import torch
scaler = torch.cuda.amp.GradScaler()
optimizer = torch.optim.SGD(p, lr=0.1)
for batch in batches:
    optimizer.zero_grad()
    model(batch).backward()
    optimizer.step()
