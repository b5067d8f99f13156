"""A small GPT that learns bytes, from the help texts that come with Python.

    python language_model.py --policy O2:bfloat16 --log run.csv

"# ampbridge" ends each statement that ampbridge adds; --policy O0 trains in float32.
"""

import argparse
import math
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, RandomSampler

import ampbridge as amp  # ampbridge

POLICIES = ("O0", "O1", "O1:bfloat16", "O2", "O2:bfloat16")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONTEXT = 96


class Text(Dataset):
    """Pieces of a text, each with the bytes that follow its own."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data) - CONTEXT

    def __getitem__(self, start):
        piece = self.data[start : start + CONTEXT + 1].long()
        return piece[:-1], piece[1:]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, width=128, heads=4, layers=3):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        self.head.weight = self.tokens.weight  # tied

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places(places))))


def loss_fn(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def bits_per_byte(model, data):
    pieces = data[: len(data) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1).long()
    losses = [loss_fn(model, p[:, :-1].to(DEVICE), p[:, 1:].to(DEVICE)) for p in pieces.split(64)]
    return torch.stack(losses).mean().item() / math.log(2)


@torch.no_grad()
def continued(model, text, length=160):
    for _ in range(length):
        known = torch.tensor([list(text[-CONTEXT:])], device=DEVICE)
        chances = model(known)[0, -1].float().div(0.7).softmax(0)
        text += bytes([torch.multinomial(chances, 1).item()])
    return text.decode(errors="replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policy", default="O2:bfloat16", choices=POLICIES)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--log", action="append", default=[], metavar="FILE", help="a CSV file")
    args = parser.parse_args()

    torch.manual_seed(0)
    data = torch.frombuffer(bytearray("\n".join(topics.values()), "utf-8"), dtype=torch.uint8)
    train, test = Text(data[:-20_000]), data[-20_000:]
    sampler = RandomSampler(train, replacement=True, num_samples=16 * args.steps)
    loader = DataLoader(train, 16, sampler=sampler)

    model = GPT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    warmup = max(1, args.steps // 20)
    scheduler = LambdaLR(optimizer, lambda n: min((n + 1) / warmup, 1 - 0.9 * n / args.steps))

    step = amp.train_step(  # ampbridge
        loss_fn, model, optimizer, policy=args.policy, clip_norm=1.0, scheduler=scheduler
    )
    log = amp.StepLog(*args.log)  # ampbridge
    for number, (x, y) in enumerate(loader, 1):
        log(step(x.to(DEVICE), y.to(DEVICE)))  # ampbridge
        if number % 100 == 0:
            print(f"step {number}  {bits_per_byte(model, test):.2f} bits per byte", flush=True)

    print(continued(model, b"The "))
    print(f"bits per byte: {bits_per_byte(model, test):.2f}")
    print(f"parameters: {sum(p.nbytes for p in model.parameters()) / 1e6:.2f} MB")
    print(f"skipped steps: {log.skipped}")  # ampbridge


if __name__ == "__main__":
    main()
