"""What takes the place of a framework's AMP calls in a script that goes on with ampbridge.

A replacement is made of the call's own expressions, so that what they mean at run time stays:

    paddle.amp.auto_cast(enable=args.amp, level=level)
    ampbridge.autocast(ampbridge.Policy(level if args.amp else "O0", lists="paddle"), backend="paddle")

Where no call of ours does what a call did, the lines to write by hand are told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence

from ampbridge_port.reader.dialects.calls import Call
from ampbridge_port.rewriters import by_hand, keras, loops, paddle, torch
from ampbridge_port.rewriters.expressions import Replacement

ALONE: Mapping[str, Replacement] = {**paddle.REPLACEMENTS, **torch.REPLACEMENTS}
"""Regions, scalers and decorations: what is replaced wherever it is named."""

# Qualified name, as the dialects spell it -> its replacement.
REPLACEMENTS: MutableMapping[str, Replacement] = {
    **by_hand.REPLACEMENTS,
    **loops.REPLACEMENTS,
    **ALONE,
}

STAYS = re.compile(
    r"keras\.(DTypePolicy|Model|Sequential|layers\.\w+|optimizers\.\w+(\.\w+)?)(\.compile)?"
    r"|tensorflow\.clip_\w+|(jax|optax)\..+|torch\.(device\.__eq__|nn\.utils\.clip_grad\w+|Tensor\.grad\.clamp_|(cuda\.)?amp\.custom_fwd)"
    r"|paddle\.(optimizer\.\w+|nn\.ClipGrad\w+|nn\.utils\.clip_grad\w+|ParamAttr|Model(\.fit)?)"
    r"|paddle\.distributed\.fleet\.DistributedStrategy(\.gradient_merge_configs)?"
    r"|accelerate\.(Accelerator\.\w+|GradientAccumulationPlugin)"
    r"|lightning\.fabric\.Fabric\.\w+"
    r"|lightning\.pytorch\.(LightningModule\.clip_gradients|callbacks\.GradientAccumulationScheduler)"
)
"""Calls that say something of a recipe and are no mixed precision: they stay as they are."""


def replacement_of(calls: Sequence[Call]) -> Mapping[str, Replacement]:
    """What takes the place of each of a script's known calls, by name; what stays is missing."""
    found = {**REPLACEMENTS, **keras.replacements(calls)}
    left = {call.name for call in calls} - found.keys()
    return {**found, **{n: by_hand.anything_else for n in left if not STAYS.fullmatch(n)}}


def ours(name: str) -> str:
    """What of ampbridge's stands for a class or function of a framework."""
    last = name.rpartition(".")[2]
    if name.rpartition(".")[0] in ALONE:
        return f"a scaler's {last.rstrip('_')}()"
    return "ampbridge.GradScaler" if "Scaler" in last else f"ampbridge.{last.replace('_', '')}"
