"""Batches of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ampbridge.adapters import registry
from ampbridge.errors import ArgumentError
from ampbridge.errors.foreign_names import told_of
from ampbridge.neutral import checks
from ampbridge.neutral.native import native_of_backend


@told_of("neutral.batches")
def batches(
    x: Any, y: Any, size: int, *, seed: int = 0, steps: int | None = None
) -> Iterator[tuple[Any, Any]]:
    """Batches ``(x, y)`` of ``size`` examples in an order that depends on ``seed`` alone.

    Every batch has the same shape, so that a compiled step is compiled once: what is left over at the
    end of an epoch is left out.

    Args:
        x, y: NumPy arrays or native tensors with the same number of examples along the first axis.
        size: the number of examples in a batch.
        seed: of the generator that orders the examples, anew for each epoch.
        steps: the number of batches, epoch after epoch; by default those of one epoch.

    Raises:
        ArgumentError: if there are fewer examples than ``size``, or ``x`` and ``y`` differ in number.
    """
    count = len(x)
    if len(y) != count:
        msg = f"x has {count} examples and y {len(y)}; they must have as many.\n"
        raise ArgumentError(msg + "Hint: neutral.batches(x, y, 128), examples along the first axis")
    size = checks.whole("size", size, 1, 128)
    if size > count:
        msg = f"Passed size={size} for {count} examples.\n"
        raise ArgumentError(msg + f"Hint: size={max(count, 1)}")
    per_epoch = count // size
    number = per_epoch if steps is None else checks.whole("steps", steps, 0, per_epoch)
    return _batches(x, y, size, number, np.random.default_rng(seed))


def _batches(
    x: Any, y: Any, size: int, number: int, rng: np.random.Generator
) -> Iterator[tuple[Any, Any]]:
    count = len(x)
    for step in range(number):
        position = step % (count // size)
        if position == 0:
            order = rng.permutation(count)
        chosen = order[position * size : (position + 1) * size]
        yield _rows(x, chosen), _rows(y, chosen)


def _rows(x: Any, indices: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x[indices]
    return native_of_backend(registry.framework_of(x)).rows(x, indices)
