"""Accelerate's Accelerator, Lightning's Trainer and Fabric: one call, under a policy of ours.

    Accelerator(mixed_precision="fp16")     ampbridge_torch.accelerate.Accelerator(policy="O1", ...)
    Trainer(precision="16-mixed")           Trainer(plugins=[ampbridge_torch.lightning.AmpBridge("O1", ...)])

Their other calls (``backward``, clipping, ``autocast``) stay: they ask these objects.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ampbridge_port.dialect import Call
from ampbridge_port.readers.lightning import ALIASES, MIXED
from ampbridge_port.rewriters.expressions import (
    UNKNOWN,
    Instead,
    NoReplacement,
    Replacement,
    check_plain,
    first_line,
    literal,
    scaler,
    text,
)

_SCALER = 'ampbridge.GradScaler.like("torch")'
_SETTINGS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
_OTHER_ENGINES = ("deepspeed_plugin", "fsdp_plugin", "megatron_lm_plugin", "kwargs_handlers")
_OURS = "ampbridge_torch.accelerate.Accelerator"
_PLUGIN = "ampbridge_torch.lightning.AmpBridge"


def accelerator(call: Call) -> Sequence[Instead] | None:
    """``Accelerator(mixed_precision=...)`` becomes ours, which is one of Accelerate's."""
    precision = (
        literal(text(call, "mixed_precision")) if "mixed_precision" in call.arguments else ""
    )
    if precision == "no":
        return None
    policy = {"fp16": "O1", "bf16": "O1:bfloat16"}.get(
        precision if precision is not UNKNOWN else ""
    )
    passed = {**call.arguments, **call.extra}
    if policy is None or call.unpacked or any(name in passed for name in _OTHER_ENGINES):
        said = f'{_OURS}("O1", scaler={_SCALER}), or "O1:bfloat16", without mixed_precision'
        raise NoReplacement(_left(call), f"{said}, FSDP, DeepSpeed and kwargs_handlers.")
    scaled = f", scaler={_SCALER}" if policy == "O1" else ""
    function = replace(call.place, text=_function(call))
    said = f'policy="{policy}"{scaled}'
    return [Instead(function, _OURS), _keyword(call, "mixed_precision", said)]


def lightning(call: Call) -> Sequence[Instead] | None:
    """``precision=`` of a Trainer or a Fabric becomes a plugin."""
    written = literal(text(call, "precision")) if "precision" in call.arguments else "32-true"
    name = ALIASES.get(str(written), str(written))
    if name in ("32-true", "64-true") and "plugins" not in call.arguments:
        return None
    policy = {"float16": "O1", "bfloat16": "O1:bfloat16"}.get(MIXED.get(name, ""))
    strategy = literal(text(call, "strategy") or '"auto"')
    alone = isinstance(strategy, str) and strategy.startswith(("auto", "ddp"))
    others = {"plugins", "amp_backend", "amp_level"} & call.arguments.keys()
    if policy is None or call.unpacked or others or not alone:
        plugin = f'plugins=[{_PLUGIN}("O1", scaler={_SCALER})]'
        raise NoReplacement(_left(call), f'{plugin}, or "O1:bfloat16", in the place of precision.')
    scaled = f", scaler={_SCALER}" if policy == "O1" else ""
    return [_keyword(call, "precision", f'plugins=[{_PLUGIN}("{policy}"{scaled})]')]


def scaler_settings(call: Call) -> None:
    """``GradScalerKwargs(...)``: the numbers of ours."""
    check_plain(call)
    made = scaler(call, "torch", {name: name for name in _SETTINGS})
    raise NoReplacement(_left(call), f"scaler={made} for {_OURS}.")


def _left(call: Call) -> str:
    return f"{first_line(call)}: no single call of ampbridge's replaces it."


def _function(call: Call) -> str:
    """The text of what is called.

    Raises:
        NoReplacement: for a class of the script's own that derives from it.
    """
    source = f"({call.place.text})"
    node = ast.parse(source, mode="eval").body
    assert isinstance(node, ast.Call)
    written = ast.get_source_segment(source, node.func) or ""
    if call.overridden or written.rpartition(".")[2] != call.name.rpartition(".")[2]:
        raise NoReplacement(_left(call), f"derive your class from {_OURS}.")
    return written


def _keyword(call: Call, name: str, new: str) -> Instead:
    """An argument that was passed by its name, with another in its place."""
    return Instead(call.arguments[name].place, new, name)


REPLACEMENTS: Mapping[str, Replacement] = {
    "accelerate.Accelerator": accelerator,
    "accelerate.GradScalerKwargs": scaler_settings,
    "lightning.pytorch.Trainer": lightning,
    "lightning.fabric.Fabric": lightning,
}
