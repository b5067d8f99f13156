"""A generative adversarial network for handwritten digits: two models, two optimizers, two loss scales.

    python gan.py --policy O1 --log run.csv

"# ampbridge" ends each statement that ampbridge adds; --policy O0 trains in float32.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import ampbridge as amp  # ampbridge

POLICIES = ("O0", "O1", "O1:bfloat16", "O2", "O2:bfloat16")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NOISE = 32


def make_generator(width=64):
    return nn.Sequential(
        nn.Linear(NOISE, 2 * width * 2 * 2),
        nn.Unflatten(1, (2 * width, 2, 2)),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
        nn.Sigmoid(),
    )


def make_critic(width=64):
    return nn.Sequential(
        nn.Conv2d(1, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(2 * width * 2 * 2, 1),
    )


def critic_loss(critic, real, fake):
    """What the critic says of images, as logits: high for real ones, low for others."""
    return F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean()


def generator_loss(generator, critic, noise):
    return F.softplus(-critic(generator(noise))).mean()


@torch.no_grad()
def generated(generator, count):
    generator.eval()
    images = generator(torch.randn(count, NOISE, device=DEVICE)).cpu().numpy()
    generator.train()
    return images


def frechet_distance(a, b):
    """Between two sets of images, as normal distributions of their pixels."""
    a, b = a.reshape(len(a), -1).astype(np.float64), b.reshape(len(b), -1).astype(np.float64)
    spread_a, spread_b = np.cov(a.T), np.cov(b.T)
    roots = np.sqrt(np.abs(np.linalg.eigvals(spread_a @ spread_b)))
    apart = np.square(a.mean(0) - b.mean(0)).sum()
    return apart + np.trace(spread_a) + np.trace(spread_b) - 2.0 * roots.sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policy", default="O1", choices=POLICIES)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument(
        "--log",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="CSV files: FILE.critic.csv and FILE.generator.csv",
    )
    parser.add_argument(
        "--samples", metavar="FILE", help="write generated digits to FILE, by np.save"
    )
    args = parser.parse_args()

    torch.manual_seed(0)
    images = torch.tensor(load_digits().images / 16.0, dtype=torch.float32).unsqueeze(1)
    loader = DataLoader(TensorDataset(images), 64, shuffle=True, drop_last=True)

    generator, critic = make_generator().to(DEVICE), make_critic().to(DEVICE)
    g_optimizer = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.999))
    c_optimizer = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.5, 0.999))

    c_step = amp.train_step(critic_loss, critic, c_optimizer, policy=args.policy)  # ampbridge
    g_step = amp.train_step(generator_loss, generator, g_optimizer, policy=args.policy)  # ampbridge
    c_log = amp.StepLog(*[path.with_suffix(".critic.csv") for path in args.log])  # ampbridge
    g_log = amp.StepLog(*[path.with_suffix(".generator.csv") for path in args.log])  # ampbridge
    for epoch in range(1, args.epochs + 1):
        for (real,) in loader:
            noise = torch.randn(len(real), NOISE, device=DEVICE)
            with torch.no_grad():
                fake = generator(noise)
            c_log(c_step(real.to(DEVICE), fake))  # ampbridge
            g_log(g_step(critic, noise))  # ampbridge
        if epoch % 10 == 0:
            distance = frechet_distance(images.numpy(), generated(generator, len(images)))
            print(f"epoch {epoch:2d}  Frechet distance {distance:.2f}", flush=True)

    samples = generated(generator, len(images))
    if args.samples:
        np.save(args.samples, samples[:64, 0])
    print(f"Frechet distance: {frechet_distance(images.numpy(), samples):.2f}")
    print(f"skipped steps of the critic: {c_log.skipped}")  # ampbridge
    print(f"skipped steps of the generator: {g_log.skipped}")  # ampbridge


if __name__ == "__main__":
    main()
