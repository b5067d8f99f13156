"""Trains a detector of lesions: a backbone in low precision, heads in HEAD_DTYPE."""

import argparse
import os

import keras
import numpy as np

from detector import Detector, low_precision


def build_parser():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone_dtype", default="float16", choices=["float16", "bfloat16", "float32"])
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clipnorm", type=float, default=0.1)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", default="lesions.keras")
    return parser


def scans(size=128, count=256):
    rng = np.random.default_rng(1)
    images = rng.normal(size=(count, size, size, 1)).astype("float32")
    targets = {
        "boxes": rng.random((count, 4)).astype("float32"),
        "lesion": rng.integers(0, 2, (count, 1)).astype("float32"),
    }
    return images, targets


def main():
    args = build_parser().parse_args()
    keras.utils.set_random_seed(3)
    detector = Detector(
        width=args.width,
        dtype=low_precision(args.backbone_dtype),
        head_dtype=os.environ.get("HEAD_DTYPE", "float32"),
    )
    model = detector.functional()
    model.compile(
        optimizer=keras.optimizers.Adam(args.lr, clipnorm=args.clipnorm),
        loss={"boxes": "huber", "lesion": keras.losses.BinaryCrossentropy(from_logits=True)},
        loss_weights={"boxes": 5.0, "lesion": 1.0},
    )
    images, targets = scans()
    model.fit(images, targets, batch_size=args.batch_size, epochs=args.epochs)
    model.save(args.out)


if __name__ == "__main__":
    main()
