import torch

SCALER = dict(init_scale=2.0**12, growth_interval=500)
AUTOCAST = {"device_type": "cuda", "dtype": torch.half}

scaler = torch.cuda.amp.GradScaler(**SCALER)


def step(model, batch, optimizer):
    with torch.autocast(**AUTOCAST):
        loss = model(batch).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
