"""Dtypes, asked for by identity first: Paddle takes a microsecond to compare or to hash one.

``in`` a tuple does the same, with the likeliest dtype in front; a set hashes.
"""

from __future__ import annotations

from typing import Any

import paddle

FLOAT32, FLOAT64 = paddle.float32, paddle.float64
LOW = {"float16": paddle.float16, "bfloat16": paddle.bfloat16}
LOW_NAMES = {dtype: name for name, dtype in LOW.items()}
CASTABLE = (FLOAT32, *LOW.values())


def is_float32(x: Any) -> bool:
    """Whether a tensor, or a traced value, is stored in float32."""
    dtype = x.dtype
    return dtype is FLOAT32 or bool(dtype == FLOAT32)
