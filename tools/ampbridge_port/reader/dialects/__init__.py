"""The frameworks whose calls of mixed precision are known, each in a module of its own.

Where a program uses several, the first that sets a policy or a scaler counts: what wraps another
framework stands before it.
"""

from __future__ import annotations

from functools import cache

from ampbridge_port.reader.dialects import (
    apex,
    deepspeed,
    hugging_face,
    lightning,
    paddle,
    tensorflow,
    torch,
)
from ampbridge_port.reader.dialects.calls import Dialect

DIALECTS: tuple[Dialect, ...] = (
    hugging_face.DIALECT,
    lightning.DIALECT,
    deepspeed.DIALECT,
    apex.DIALECT,
    torch.DIALECT,
    tensorflow.DIALECT,
    paddle.DIALECT,
)

KNOWN = frozenset(name for each in DIALECTS for name in (*each.calls, *each.aliases))
LAST_NAMES = frozenset(name.rpartition(".")[2] for name in KNOWN)
"""The last parts of the names of all that is known."""


@cache
def is_known(qualified: str) -> bool:
    """Whether a dialect knows what is called."""
    return any(each.resolve(qualified) for each in DIALECTS)
