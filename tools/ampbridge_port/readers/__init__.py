"""The frameworks whose AMP calls are understood, each in a module of its own.

Where a file uses several, the first that sets a policy or a scaler counts: what wraps another
framework stands before it.
"""

from __future__ import annotations

from ampbridge_port.dialect import Dialect
from ampbridge_port.readers import (
    accelerate,
    apex,
    deepspeed,
    lightning,
    mmengine,
    paddlenlp,
    tensorflow,
    torch,
)

DIALECTS: tuple[Dialect, ...] = (
    accelerate.DIALECT,
    lightning.DIALECT,
    deepspeed.DIALECT,
    apex.DIALECT,
    torch.DIALECT,
    mmengine.DIALECT,
    tensorflow.DIALECT,
    paddlenlp.DIALECT,  # and Paddle's
)
