"""--amp and --no-amp, on by default; steps in a loop that warms up, and each n-th time afterwards."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--amp", dest="amp", action="store_true")
parser.add_argument("--no-amp", dest="amp", action="store_false")
parser.set_defaults(amp=True)


def main(args, model, optimizer, loader):
    scaler = torch.cuda.amp.GradScaler(enabled=args.amp)

    def backward(image):
        with torch.cuda.amp.autocast(enabled=args.amp):
            loss = model(image).mean() / 4
        scaler.scale(loss).backward()

    def step():
        scaler.step(optimizer)
        scaler.update()

    for _ in range(11):
        backward(loader.first)
    step()
    for count, image in enumerate(loader):
        backward(image)
        if (count + 1) % 4 == 0:
            step()


main(parser.parse_args(), network, sgd, images)
