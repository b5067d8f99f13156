import contextlib

import torch


def precision_context(fp16: bool):
    return torch.cuda.amp.autocast(dtype=torch.float16) if fp16 else contextlib.nullcontext()


def train(model, loader, optimizer, fp16):
    scaler = torch.cuda.amp.GradScaler() if fp16 else None
    for batch in loader:
        with precision_context(fp16):
            loss = model(**batch).loss
        if fp16:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
