"""Equality of states to the last bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def assert_same(a: Any, b: Any) -> None:
    """Equal in structure, type, dtype and bits."""
    if isinstance(a, Tensor):
        assert a.dtype is b.dtype
        assert a.shape == b.shape
        assert torch.equal(bits(a), bits(b))
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b or (a != a and b != b)  # NaN is NaN
