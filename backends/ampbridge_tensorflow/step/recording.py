"""What a tf.GradientTape records, and that it stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from ampbridge.adapters.interrupts import uninterrupted

T = TypeVar("T")


def recorded(tape: tf.GradientTape, compute: Callable[[], T]) -> T:
    """What ``compute`` returns, recorded on ``tape``, which stands on TensorFlow's stack no longer than that.

    ``with tape:`` leaves it there if Ctrl-C comes just when its ``__exit__`` begins. It would record all
    that the thread computes from then on, and keep it.
    """
    try:
        with uninterrupted():
            tape.__enter__()
        result = compute()
        with uninterrupted():
            tape.__exit__(None, None, None)
        return result
    except BaseException:
        with uninterrupted():
            tape.__exit__(None, None, None)  # nothing, if it has been done
        raise
