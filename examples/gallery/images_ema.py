"""Classify handwritten digits: augmented images, a one-cycle schedule, an average of the weights.

    python images_ema.py --policy O1 --log run.csv

"# ampbridge" ends each statement that ampbridge adds; --policy O0 trains in float32.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, Dataset

import ampbridge as amp  # ampbridge

POLICIES = ("O0", "O1", "O1:bfloat16", "O2", "O2:bfloat16")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Digits(Dataset):
    """Digits of scikit-learn on 12 x 12 pixels; in training each is moved, and loses a square."""

    def __init__(self, images, labels, augment):
        self.images, self.labels, self.augment = images, labels, augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = F.pad(self.images[index], (2, 2, 2, 2))
        if self.augment:
            image = image.roll(torch.randint(-2, 3, (2,)).tolist(), dims=(1, 2))
            top, left = torch.randint(0, 10, (2,)).tolist()
            image[:, top : top + 3, left : left + 3] = 0.0
        return image, self.labels[index]


class Block(nn.Module):
    """Two convolutions and the way around them."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return F.relu(x + self.layers(x))


def resnet(width=32):
    stem = [nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks = [Block(width), nn.MaxPool2d(2), Block(width), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*stem, *blocks, nn.Flatten(), nn.Linear(width, 10))


def loss_fn(model, images, labels):
    return F.cross_entropy(model(images), labels, label_smoothing=0.1)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = [(model(x.to(DEVICE)).argmax(1) == y.to(DEVICE)).float() for x, y in loader]
    model.train()
    return torch.cat(right).mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policy", default="O1", choices=POLICIES)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--log", action="append", default=[], metavar="FILE", help="a CSV file")
    args = parser.parse_args()

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    loader = DataLoader(Digits(images[600:], labels[600:], True), 64, shuffle=True, drop_last=True)
    test_loader = DataLoader(Digits(images[:600], labels[:600], False), 200)

    model = resnet().to(DEVICE)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = OneCycleLR(optimizer, 0.1, total_steps=args.epochs * len(loader))

    scaler = amp.GradScaler(2.0**20, growth_interval=100)  # ampbridge
    step = amp.train_step(  # ampbridge
        loss_fn, model, optimizer, policy=args.policy, scaler=scaler, scheduler=scheduler
    )
    log = amp.StepLog(*args.log)  # ampbridge
    for epoch in range(1, args.epochs + 1):
        for x, y in loader:
            log(step(x.to(DEVICE), y.to(DEVICE)))  # ampbridge
            with amp.undecorated(model):  # ampbridge
                averaged.update_parameters(model)
        print(f"epoch {epoch:2d}  accuracy {accuracy(model, test_loader):.1%}", flush=True)

    update_bn(loader, averaged, DEVICE)
    print(f"accuracy: {accuracy(model, test_loader):.1%}")
    print(f"accuracy of the average: {accuracy(averaged, test_loader):.1%}")
    print(f"skipped steps: {log.skipped}")  # ampbridge


if __name__ == "__main__":
    main()
