"""Arguments that are True or False: one check, the same words everywhere."""

from __future__ import annotations

import numpy as np

from ampbridge.errors import ArgumentTypeError


def checked_flag(name: str, value: object) -> bool:
    """``value``, if it is True or False; a word would pass for True.

    Raises:
        ArgumentTypeError: for anything else.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    msg = f"{name} is True or False, not {value!r:.80}.\nHint: {name}=True"
    raise ArgumentTypeError(msg)
