"""A training in float16 or bfloat16, as its command line says; `ampbridge port` asks which is meant."""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=["float16", "bfloat16"], required=True)
    parser.add_argument("--accumulate", type=int, required=True)
    args = parser.parse_args()

    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, enabled=args.dtype == "float16")
    for i in range(1000):
        x = torch.randn(16, 32, device="cuda")
        with torch.autocast("cuda", dtype=getattr(torch, args.dtype)):
            loss = nn.functional.mse_loss(model(x), x[:, :8]) / args.accumulate
        scaler.scale(loss).backward()
        if (i + 1) % args.accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
