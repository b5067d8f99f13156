"""A small U-Net that finds handwritten digits in noisy pictures, trained by a loop in Paddle's style.

    python segmentation_paddle.py --policy O1 --log run.csv

"# ampbridge" ends each statement that ampbridge adds; --policy O0 trains in float32.
"""

import argparse
from itertools import chain, islice, pairwise, repeat

import numpy as np
import paddle
from paddle import nn
from paddle.io import DataLoader, Dataset
from paddle.nn import functional as F
from sklearn.datasets import load_digits

import ampbridge as amp  # ampbridge

POLICIES = ("O0", "O1", "O1:bfloat16", "O2", "O2:bfloat16")
SIZE = 32  # pixels, of a picture
CLASSES = 2  # of a pixel: background, digit


class Scenes(Dataset):
    """Pictures of noise and three digits, which may overlap, and the class of each pixel."""

    def __init__(self, mode, length):
        super().__init__()
        images = load_digits().images.repeat(2, 1).repeat(2, 2) / 16  # 16 x 16 pixels
        self.images = images[600:] if mode == "train" else images[:600]
        self.length = length

    def __getitem__(self, index):
        draw = np.random.default_rng([index, self.length])
        picture = np.zeros((SIZE, SIZE))
        mask = np.zeros((SIZE, SIZE), "int64")
        for digit in draw.choice(self.images, 3):
            row, column = draw.integers(SIZE - 16, size=2, endpoint=True)
            place = np.s_[row : row + 16, column : column + 16]
            mask[place] |= digit > 0.3
            picture[place] = np.maximum(digit, picture[place])
        picture += draw.normal(0, 0.5, picture.shape)
        return picture[None].astype("float32"), mask

    def __len__(self):
        return self.length


def block(inputs, outputs):
    layers = []
    for channels in (inputs, outputs):
        layers.append(nn.Conv2D(channels, outputs, 3, padding=1, bias_attr=False))
        layers += [nn.BatchNorm2D(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Layer):
    def __init__(self, widths=(8, 16, 32)):
        super().__init__()
        pairs = list(pairwise(widths))
        self.first = block(1, widths[0])
        self.down = nn.LayerList([block(wide, deep) for wide, deep in pairs])
        pairs.reverse()
        self.up = nn.LayerList([nn.Conv2DTranspose(deep, wide, 2, 2) for wide, deep in pairs])
        self.join = nn.LayerList([block(2 * wide, wide) for wide, _ in pairs])
        self.head = nn.Conv2D(widths[0], CLASSES, 1)

    def forward(self, x):
        kept = [self.first(x)]
        for down in self.down:
            kept.append(down(F.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(paddle.concat([kept.pop(), up(x)], axis=1))
        return self.head(x)


def loss_fn(net, pictures, masks):
    """Cross entropy, plus one minus the mean Dice coefficient of the classes."""
    logits = net(pictures)
    shares = F.softmax(logits, axis=1)
    truth = F.one_hot(masks, CLASSES).transpose([0, 3, 1, 2])
    common = (shares * truth).sum([0, 2, 3])
    dice = (2 * common + 1) / (shares.sum([0, 2, 3]) + truth.sum([0, 2, 3]) + 1)
    return F.cross_entropy(logits, masks, axis=1) + 1 - dice.mean()


@paddle.no_grad()
def evaluate(net, loader):
    """The intersection over union of the digits' pixels, and the share of right pixels."""
    net.eval()
    counts = np.zeros((CLASSES, CLASSES), int)  # of pixels, by their class and the class found
    for pictures, masks in loader:
        found = net(pictures).argmax(1)
        np.add.at(counts, (masks.numpy(), found.numpy()), 1)
    net.train()
    return counts[1, 1] / (counts.sum() - counts[0, 0]), np.trace(counts) / counts.sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policy", default="O1", choices=POLICIES)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--log", action="append", default=[], metavar="FILE", help="a CSV file")
    args = parser.parse_args()

    paddle.seed(0)
    np.random.seed(0)  # the order of the pictures
    loader = DataLoader(Scenes("train", 2000), batch_size=32, shuffle=True, drop_last=True)
    test_loader = DataLoader(Scenes("test", 300), batch_size=100)
    net = UNet()
    rate = paddle.optimizer.lr.CosineAnnealingDecay(5e-3, T_max=args.steps)
    optimizer = paddle.optimizer.AdamW(rate, parameters=net.parameters())

    step = amp.train_step(loss_fn, net, optimizer, policy=args.policy, scheduler=rate)  # ampbridge
    log = amp.StepLog(*args.log)  # ampbridge
    batches = islice(chain.from_iterable(repeat(loader)), args.steps)
    for number, (pictures, masks) in enumerate(batches, 1):
        loss = log(step(pictures, masks)).loss  # ampbridge
        if number % 50 == 0:
            print(f"step {number:3d}  loss {float(loss):.3f}", flush=True)

    iou, accuracy = evaluate(net, test_loader)
    print(f"IoU of the digits: {iou:.3f}")
    print(f"right pixels: {accuracy:.1%}")
    print(f"skipped steps: {log.skipped}")  # ampbridge


if __name__ == "__main__":
    main()
