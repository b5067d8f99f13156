"""Arguments that are True or False, or whole numbers: one check each, the same words everywhere."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from ampbridge.errors import ArgumentError, ArgumentTypeError


def checked_flag(name: str, value: object) -> bool:
    """``value``, if it is True or False; a word would pass for True."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise ArgumentTypeError(f"{name} is True or False, not {value!r:.80}.\nHint: {name}=True")


def checked_count(name: str, value: Any, hint: str, least: int = 1) -> int:
    """``value``, if it is a whole number from ``least``; True is none. ``hint`` is the code to write."""
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least:
        return int(value)
    msg = f"Passed {name}={value!r}; allowed is a whole number from {least}.\nHint: {hint}"
    raise ArgumentError(msg)
