"""The frameworks whose calls of mixed precision are known, each in a module of its own.

Where a program uses several, the first that sets a policy or a scaler counts: what wraps another
framework stands before it.
"""

from __future__ import annotations

import sys
from functools import cache

from ampbridge_port.reader.dialects import (
    apex,
    deepspeed,
    hugging_face,
    jax,
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
    jax.DIALECT,
)

KNOWN = frozenset(name for each in DIALECTS for name in (*each.calls, *each.aliases))
LAST_NAMES = frozenset(name.rpartition(".")[2] for name in KNOWN)
"""The last parts of the names of all that is known."""

FRAMEWORKS = {name.partition(".")[0] for each in DIALECTS for name in each.calls} - {"os"}
_LIBRARIES = {"builtins", "numpy", *sys.stdlib_module_names} | FRAMEWORKS


def is_known_library(qualified: str) -> bool:
    """Whether a name is of a framework, of Python or of NumPy; not of a module that was not read."""
    return qualified.partition(".")[0] in _LIBRARIES


@cache
def resolved(qualified: str) -> tuple[tuple[Dialect, str], ...]:
    """The dialects that know what is called, each with its name for it."""
    names = ((each, each.resolve(qualified)) for each in DIALECTS)
    return tuple((dialect, name) for dialect, name in names if name is not None)


def is_known(qualified: str) -> bool:
    """Whether a dialect knows what is called."""
    return bool(resolved(qualified))
