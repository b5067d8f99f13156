"""torch passes the rank before what ``args`` has; the epoch and its settings are known."""

import torch
import torch.multiprocessing as mp
from elsewhere import build


def epoch(rank, model, optimizer, loader, init_scale=2.0**16, every=2):
    scaler = torch.amp.GradScaler("cuda", init_scale=init_scale)
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x.to(rank), y.to(rank)) / every
        scaler.scale(loss).backward()
        if (i + 1) % every == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def worker(rank, settings, every):
    epoch(rank, *build(rank), init_scale=settings["scale"], every=every)


def main():
    mp.spawn(worker, nprocs=2, args=({"scale": 1024.0}, 8))


if __name__ == "__main__":
    main()
