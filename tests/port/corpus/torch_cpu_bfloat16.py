import torch

model.train()
for batch in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu"):
        loss = model(batch)
    loss.backward()
    optimizer.step()
