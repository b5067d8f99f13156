"""A process that saves to one path, or loads from it, over and over; for test_interrupted_saves.py.

    python saving_process.py save PATH FIRST TIMES      says each number that it has saved
    python saving_process.py load PATH FIRST TIMES      ends with an error if a checkpoint is not whole

FIRST is the number that it begins with.
"""

from __future__ import annotations

import sys

import numpy as np

from ampbridge.checkpoints import checkpoint
from ampbridge.checkpoints.checkpoint import Checkpoint

VALUES = 100_000  # float32: large enough to be interrupted while they are written


def numbered(number: int) -> Checkpoint:
    """A checkpoint that says three times which one it is."""
    first, second = (np.full(VALUES, number, np.float32) for _ in range(2))
    return Checkpoint({"number": number}, {"first": first, "second": second})


def number_of(saved: Checkpoint) -> int:
    """Which one it is.

    Raises:
        AssertionError: if it is put together of several.
    """
    number: int = saved.state["number"]
    assert set(saved.tensors) == {"first", "second"}
    for values in saved.tensors.values():
        assert values.shape == (VALUES,)
        assert (values == number).all()
    return number


if __name__ == "__main__":
    what, path = sys.argv[1:3]
    first, times = map(int, sys.argv[3:])
    print("ready", flush=True)
    for number in range(first, first + times):
        if what == "save":
            checkpoint.write(path, numbered(number))
        else:
            number_of(checkpoint.read(path))
        print(number, flush=True)
