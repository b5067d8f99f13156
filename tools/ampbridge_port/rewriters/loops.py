"""Accelerate's Accelerator, Lightning's Trainer and Fabric: one call, under a policy of ours.

    Accelerator(mixed_precision="fp16")     ampbridge_torch.accelerate.Accelerator(policy="O1", ...)
    Trainer(precision="16-mixed")           Trainer(plugins=[ampbridge_torch.lightning.AmpBridge("O1", ...)])

Their other calls (``backward``, clipping, ``autocast``) stay: they ask these objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ampbridge_port.reader.dialects.calls import Call
from ampbridge_port.reader.dialects.lightning import MIXED, SHORT
from ampbridge_port.rewriters.expressions import (
    NoReplacement,
    Part,
    Replacement,
    check_plain,
    function,
    literal,
    scaler,
    text,
)
from ampbridge_port.rewriters.torch import SETTINGS

_POLICIES = {"float16": "O1", "bfloat16": "O1:bfloat16"}
_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
_SCALER = 'ampbridge.GradScaler.like("torch")'
_OTHER_ENGINES = {"deepspeed_plugin", "fsdp_plugin", "megatron_lm_plugin", "kwargs_handlers"}
_OURS = "ampbridge_torch.accelerate.Accelerator"
_PLUGIN = "ampbridge_torch.lightning.AmpBridge"
_WHY = "no single call of ampbridge's replaces it"


def accelerator(call: Call) -> Sequence[Part] | None:
    """``Accelerator(mixed_precision=...)`` becomes ours, which is one of Accelerate's."""
    precision = literal(text(call, "mixed_precision"))
    if precision == "no":
        return None
    policy = _policy(_DTYPES.get(str(precision)))
    others = _OTHER_ENGINES & {*call.arguments, *call.extra}
    if policy is None or call.unpacked or others:
        said = f'{_OURS}("O1", scaler={_SCALER}), or "O1:bfloat16", without mixed_precision'
        raise NoReplacement(call, _WHY, f"{said}, FSDP, DeepSpeed and kwargs_handlers.")
    written = function(call)
    if call.overridden or written.rpartition(".")[2] != "Accelerator":
        raise NoReplacement(call, _WHY, f"derive your class from {_OURS}.")
    passed = Part(call.place_of("mixed_precision"), f"policy={policy}", "mixed_precision")
    return [Part(replace(call.place, text=written), _OURS), passed]


def lightning(call: Call) -> Sequence[Part] | None:
    """``precision=`` of a Trainer or a Fabric becomes a plugin."""
    written = literal(text(call, "precision")) if "precision" in call.arguments else "32-true"
    name = SHORT.get(str(written), str(written))
    if name in ("32-true", "64-true") and "plugins" not in call.arguments:
        return None
    policy = _policy(MIXED.get(name))
    strategy = literal(text(call, "strategy") or '"auto"')
    alone = isinstance(strategy, str) and strategy.startswith(("auto", "ddp"))
    others = {"plugins", "amp_backend", "amp_level"} & {*call.arguments, *call.extra}
    if policy is None or call.unpacked or others or not alone:
        plugin = f'plugins=[{_PLUGIN}("O1", scaler={_SCALER})]'
        raise NoReplacement(call, _WHY, f'{plugin}, or "O1:bfloat16", in the place of precision.')
    return [Part(call.place_of("precision"), f"plugins=[{_PLUGIN}({policy})]", "precision")]


def _policy(dtype: str | None) -> str | None:
    """The arguments of ours, in float16 with a scaler."""
    if dtype is None:
        return None
    scaled = f", scaler={_SCALER}" if dtype == "float16" else ""
    return f'"{_POLICIES[dtype]}"{scaled}'


def scaler_settings(call: Call) -> None:
    """``GradScalerKwargs(...)``: the numbers of ours."""
    check_plain(call)
    made = scaler(call, "torch", {name: name for name in SETTINGS})
    raise NoReplacement(call, _WHY, f"scaler={made} for {_OURS}.")


REPLACEMENTS: Mapping[str, Replacement] = {
    "accelerate.Accelerator": accelerator,
    "accelerate.GradScalerKwargs": scaler_settings,
    "lightning.pytorch.Trainer": lightning,
    "lightning.fabric.Fabric": lightning,
}
