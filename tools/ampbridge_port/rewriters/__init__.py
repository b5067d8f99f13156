"""What takes the place of a framework's AMP calls in a script that goes on with ampbridge.

A replacement is made of the call's own expressions, so that what they mean at run time stays:

    paddle.amp.auto_cast(enable=args.amp, level=level)
    ampbridge.autocast(ampbridge.Policy(level if args.amp else "O0", lists="paddle"), backend="paddle")

Where no call of ours does what a call did, the lines to write by hand are told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence

from ampbridge_port.dialect import Call
from ampbridge_port.rewriters import by_hand, keras, loops, paddle, torch
from ampbridge_port.rewriters.expressions import Around, NoReplacement, Removed, Replacement

__all__ = ["REPLACEMENTS", "Around", "NoReplacement", "Removed", "Replacement", "replacement_of"]

# Qualified name, as the dialects spell it -> its replacement.
REPLACEMENTS: MutableMapping[str, Replacement] = {
    **by_hand.REPLACEMENTS,
    **loops.REPLACEMENTS,
    **paddle.REPLACEMENTS,
    **torch.REPLACEMENTS,
}

STAYS = re.compile(
    r"keras\.(DTypePolicy|Model|Sequential|layers\.\w+|optimizers\.\w+(\.\w+)?)(\.compile)?"
    r"|tensorflow\.clip_\w+|torch\.(nn\.utils\.clip_grad\w+|Tensor\.grad\.clamp_|(cuda\.)?amp\.custom_fwd)"
    r"|paddle\.(optimizer\.\w+|nn\.ClipGrad\w+|nn\.utils\.clip_grad\w+|ParamAttr|Model)"
    r"|paddle\.distributed\.fleet\.DistributedStrategy(\.gradient_merge_configs)?"
    r"|accelerate\.(Accelerator\.\w+|GradientAccumulationPlugin)"
    r"|lightning\.fabric\.Fabric\.\w+|lightning\.pytorch\.(LightningModule\.clip_gradients|callbacks\.GradientAccumulationScheduler)"
)
"""Calls that say something of a recipe and are no mixed precision: they stay as they are."""


def replacement_of(calls: Sequence[Call]) -> Mapping[str, Replacement]:
    """What takes the place of each of a script's known calls, by name; what stays is missing."""
    found = {**REPLACEMENTS, **keras.replacements(calls)}
    left = {call.name for call in calls} - found.keys()
    rest = {name: by_hand.anything_else for name in left if not STAYS.fullmatch(name)}
    return {**found, **rest}
