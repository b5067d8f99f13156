"""What takes the place of a framework's AMP calls in a script that goes on with ampbridge.

A replacement is made of the call's own expressions, so that what they mean at run time stays:

    paddle.amp.auto_cast(enable=args.amp, level=level)
    ampbridge.autocast(ampbridge.Policy(level if args.amp else "O0", lists="paddle"), backend="paddle")
"""

from __future__ import annotations

from collections.abc import MutableMapping

from ampbridge.port.rewriters import paddle, refused, torch
from ampbridge.port.rewriters.expressions import NoReplacement, Replacement

__all__ = ["REPLACEMENTS", "NoReplacement", "Replacement"]

# Qualified name, as the dialects spell it -> its replacement. What is not here is no AMP, and stays.
REPLACEMENTS: MutableMapping[str, Replacement] = {
    **paddle.REPLACEMENTS,
    **torch.REPLACEMENTS,
    **refused.REPLACEMENTS,
}
