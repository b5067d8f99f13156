"""Rounding and precision as NumPy and ml_dtypes see them: nothing here goes through ampbridge."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import paddle

LOW = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def rounded(values: Any, dtype: str) -> np.ndarray:
    """float32 ``values`` rounded to ``dtype``, as float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values, np.float32).astype(LOW[dtype]).astype(np.float32)


def is_representable(values: Any, dtype: str) -> bool:
    """Whether every value can be held by ``dtype``."""
    array = np.asarray(values, np.float32)
    return bool(np.array_equal(array, rounded(array, dtype), equal_nan=True))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """float32 values of about 1, almost none of which 16 bits can hold."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def trainable(array: np.ndarray) -> paddle.Tensor:
    return paddle.to_tensor(array, stop_gradient=False)


def bits(tensor: Any) -> bytes:
    return bytes(
        np.ascontiguousarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor).tobytes()
    )
