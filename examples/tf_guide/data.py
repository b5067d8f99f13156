"""Handwritten digits in MNIST's shape, without a download: scikit-learn's 8 x 8 images, enlarged.

Each pixel becomes 3 x 3 and two empty ones surround the image: 28 x 28, the guide's 784 inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits

INPUTS, CLASSES = 784, 10
VALIDATION_SPLIT = 0.2  # of what is left beside the test images, as in the guide
TEST_SIZE = 597  # of 1797


class Examples(NamedTuple):
    """``x`` float32 (n, 784) from 0 to 1, ``y`` int64 (n,)."""

    x: np.ndarray
    y: np.ndarray


class Data(NamedTuple):
    training: Examples
    validation: Examples
    test: Examples


def load() -> Data:
    """960 images to train on, 240 to validate, 597 to test, shuffled once and for all."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    enlarged = np.kron(digits.images[order] / 16, np.ones((1, 3, 3)))
    x = np.pad(enlarged, ((0, 0), (2, 2), (2, 2))).reshape(-1, INPUTS).astype(np.float32)
    y = digits.target[order].astype(np.int64)
    known = len(y) - TEST_SIZE
    trained = round(known * (1 - VALIDATION_SPLIT))
    parts = slice(trained), slice(trained, known), slice(known, None)
    return Data(*(Examples(x[part], y[part]) for part in parts))


def batches(data: Examples, size: int, rng: np.random.Generator) -> Iterator[Examples]:
    """One epoch in a new order; what does not fill a batch is left out."""
    order = rng.permutation(len(data.y))
    for first in range(0, len(order) - size + 1, size):
        chosen = order[first : first + size]
        yield Examples(data.x[chosen], data.y[chosen])
