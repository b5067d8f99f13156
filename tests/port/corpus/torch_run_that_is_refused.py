"""A run that the program refuses is no recipe."""

import argparse, torch
def worker(gpu, args):
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    elif args.gpu is not None:
        raise NotImplementedError("DistributedDataParallel alone is supported.")
    else:
        raise NotImplementedError("DistributedDataParallel alone is supported.")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler()
    train(model, optimizer, scaler)
def train(model, optimizer, scaler):
    for x in data:
        with torch.cuda.amp.autocast():
            loss = model(x).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
parser = argparse.ArgumentParser()
parser.add_argument("--distributed", action="store_true")
parser.add_argument("--gpu", type=int)
worker(0, parser.parse_args())
