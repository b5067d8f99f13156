"""timm's scaler scales, clips and steps."""

import torch
from timm.utils import NativeScaler, get_state_dict
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
loss_scaler = NativeScaler()
for x in data:
    optimizer.zero_grad()
    with torch.amp.autocast("cuda"):
        loss = model(x).sum()
    loss_scaler(loss, optimizer, clip_grad=2.0, parameters=model.parameters())
