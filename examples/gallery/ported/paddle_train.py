"""Handwritten digits in Paddle's own mixed precision: the script whose recipe is ported.

    python paddle_train.py --log paddle.csv

It knows nothing of ampbridge. On a CPU Paddle switches its mixed precision off.
"""

import argparse
import csv

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F
from sklearn.datasets import load_digits


def batches(images, labels, steps, size=64):
    draw = np.random.default_rng(0)
    for _ in range(steps):
        chosen = draw.integers(len(labels), size=size)
        yield images[chosen], labels[chosen]


def linear(inputs, outputs, draw):
    weight = draw.normal(0, (2 / inputs) ** 0.5, (inputs, outputs)).astype("float32")
    return nn.Linear(inputs, outputs, paddle.ParamAttr(initializer=nn.initializer.Assign(weight)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--log", metavar="FILE", help="a CSV file")
    args = parser.parse_args()

    digits = load_digits()
    images, labels = (digits.data / 8 - 1).astype("float32"), digits.target.astype("int64")
    draw = np.random.default_rng(1)
    model = nn.Sequential(
        linear(64, 256, draw),
        nn.GELU(),
        nn.LayerNorm(256),
        linear(256, 256, draw),
        nn.GELU(),
        nn.LayerNorm(256),
        linear(256, 10, draw),
    )
    optimizer = paddle.optimizer.Momentum(
        0.005,
        momentum=0.9,
        parameters=model.parameters(),
        grad_clip=nn.ClipGradByGlobalNorm(1.0),
    )
    scaler = paddle.amp.GradScaler(
        init_loss_scaling=2.0**24, incr_every_n_steps=100, decr_every_n_nan_or_inf=2
    )

    rows = []
    for x, y in batches(images[600:], labels[600:], args.steps):
        with paddle.amp.auto_cast(level="O1", dtype="float16", custom_black_list=["gelu"]):
            logits = model(paddle.to_tensor(x))
            loss = F.cross_entropy(logits, paddle.to_tensor(y))
        scale = float(scaler.state_dict().get("scale", 1.0))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
        rows.append({"loss": loss.item(), "scale": scale})

    if args.log:
        with open(args.log, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    with paddle.no_grad():
        found = model(paddle.to_tensor(images[:600])).argmax(1).numpy()
    print(f"accuracy: {(found == labels[:600]).mean():.1%}")


if __name__ == "__main__":
    main()
