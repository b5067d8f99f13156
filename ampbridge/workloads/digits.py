"""Handwritten digits: 1797 images of 8 x 8 pixels in ten classes, as NumPy arrays.

They are those of ``sklearn.datasets.load_digits``; ``data/digits.txt`` names their authors and their
licence. Split and order of the batches depend on seeds alone, so every framework sees the same numbers
in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ampbridge import neutral

Array = npt.NDArray[Any]

FILE = Path(__file__).parent / "data" / "digits.csv.gz"

CLASSES = 10
TEST_SIZE = 600

# The transformer reads an image as 16 words, one for each 2 x 2 patch. A word says where the patch
# is and which of its pixels are inked, so that one embedding holds words and positions.
PATCHES, PATTERNS = 16, 16
VOCABULARY = PATCHES * PATTERNS


class Examples(NamedTuple):
    """Inputs and their labels, along the first axis."""

    x: Array
    y: Array


def load(workload: str) -> tuple[Examples, Examples]:
    """Training and test examples, shuffled once and for all.

    Returns:
        ``x`` as ``workload`` reads it: token ids int64 (n, 16) for "transformer", else pixels from
        0 to 1, float32 (n, 1, 8, 8). ``y`` int64 (n,).
    """
    images, labels = _read()
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order], labels[order]
    x = tokens(images) if workload == "transformer" else pixels(images)
    return Examples(x[TEST_SIZE:], labels[TEST_SIZE:]), Examples(x[:TEST_SIZE], labels[:TEST_SIZE])


@cache
def _read() -> tuple[Array, Array]:
    """Images (n, 8, 8) with values 0 to 16, and labels (n,), both int64."""
    table = np.loadtxt(FILE, dtype=np.int64, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1]


def pixels(images: Array) -> Array:
    """Images with values 0 to 16, (n, 8, 8), as one channel from 0 to 1: float32 (n, 1, 8, 8)."""
    scaled: Array = (images / 16.0).astype(np.float32)
    return scaled[:, None]


def tokens(images: Array) -> Array:
    """Images with values 0 to 16, (n, 8, 8), as the words of their 2 x 2 patches: int64 (n, 16)."""
    inked = (images >= 8).astype(np.int64).reshape(-1, 4, 2, 4, 2)
    patterns = np.einsum("nyaxb,ab->nyx", inked, [[1, 2], [4, 8]]).reshape(-1, PATCHES)
    words: Array = np.arange(PATCHES) * PATTERNS + patterns
    return words


def batches(data: Examples, size: int, steps: int, seed: int = 0) -> Iterator[Examples]:
    """``steps`` batches of ``size``, epoch after epoch in a new order; an epoch's rest is left out.

    Raises:
        ArgumentError: if ``size`` is more than there are examples.
    """
    for x, y in neutral.batches(data.x, data.y, size, seed=seed, steps=steps):
        yield Examples(x, y)
