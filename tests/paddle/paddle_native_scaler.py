"""``paddle.amp.GradScaler`` made to work on a CPU.

It refuses to be made there, but all of its kernels are there; ``unlocked`` goes around that one check.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import paddle
from paddle.amp import grad_scaler as native_module


@contextmanager
def unlocked() -> Iterator[None]:
    native_module.amp_global_state().amp_dtype = "float16"
    with mock.patch.object(native_module, "in_dynamic_mode", return_value=False):
        yield


@unlocked()
def native_scaler(**settings: Any) -> paddle.amp.GradScaler:
    return paddle.amp.GradScaler(**settings)


@contextmanager
def without_print() -> Iterator[None]:
    """Its ``update`` prints when the scale decreases, and raises at that with NumPy 2.4."""

    def number(x: Any) -> float:
        return float(x.item() if hasattr(x, "item") else x)

    with (
        mock.patch.object(native_module, "print", create=True),
        mock.patch.object(native_module, "float", number, create=True),
    ):
        yield
