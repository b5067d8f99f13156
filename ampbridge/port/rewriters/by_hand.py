"""AMP calls that no single call of ampbridge's takes the place of: the lines to write instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ampbridge.port.dialect import Call
from ampbridge.port.rewriters.expressions import (
    UNKNOWN,
    NoReplacement,
    Replacement,
    changed,
    first_line,
    literal,
    scaler,
    text,
)

_TRAIN_STEP = (
    "write the recipe with --to toml, and the loop with ampbridge.train_step(..., recipe=recipe)"
)
_REGION = 'with ampbridge.autocast({policy}, backend="torch"): around the model and its loss'
_STEP = "scaler.step(optimizer) and scaler.update() in the place of optimizer.step()"
_SCALER = 'scaler = ampbridge.GradScaler.like("{preset}")'
_SETTINGS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")


def instead(how: Callable[[Call], str | None], call: Call) -> None:
    """Leave the call, and say what to write; nothing, where ``how`` has nothing to say."""
    hint = how(call)
    if hint is not None:
        raise NoReplacement(f"{first_line(call)}: no single call of ampbridge's replaces it.", hint)


def _always(hint: str) -> Callable[[Call], str]:
    return lambda call: hint


# -- apex


def _initialize(call: Call) -> str | None:
    level = literal(text(call, "opt_level") or '"O1"')
    if literal(text(call, "enabled")) is False or level == "O0":
        return "take it out."
    made, region = _apex_scaler(call), _REGION.format(policy='"O1"')
    if made is None:
        return _TRAIN_STEP
    if level == "O1":
        return f"{made}; {region}."
    models, optimizers = text(call, "models") or "model", text(call, "optimizers") or "optimizer"
    if level in ("O2", "O3"):
        masters = "" if level == "O2" else ", master_weights=False"
        decorated = f'ampbridge.decorate({models}, {optimizers}, ampbridge.Policy("O2"{masters}))'
        return f"{models}, {optimizers} = {decorated}" + (f"; {made}." if level == "O2" else ".")
    return _TRAIN_STEP


def _apex_scaler(call: Call) -> str | None:
    """A scaler by ``loss_scale``: "dynamic", or a number that stays."""
    scale = literal(text(call, "loss_scale") or '"dynamic"')
    if isinstance(scale, (int, float)):
        return f'scaler = ampbridge.GradScaler.like("apex", init_scale={scale}, dynamic=False)'
    return _SCALER.format(preset="apex") if scale == "dynamic" else None


def _scale_loss(call: Call) -> str:
    loss = text(call, "loss") or "loss"
    return f"scaler.scale({loss}).backward(), without the with; {_STEP}."


def _master_params(call: Call) -> str:
    optimizer = text(call, "optimizer") or "optimizer"
    return f"scaler.unscale({optimizer}) before it, and model.parameters() in its place."


def _registered(key: str, call: Call) -> str:
    name = literal(text(call, "name"))
    listed = f'"{name}"' if isinstance(name, str) else "..."
    return f'ampbridge.Policy("O1", {key}=[{listed}]) for the regions.'


# -- Accelerate


def _accelerator(call: Call) -> str | None:
    precision = literal(text(call, "mixed_precision"))
    if precision == "no":
        return None
    if "mixed_precision" not in call.arguments:
        return "mixed_precision='no' if `accelerate config` says so; else as it says, then rewrite again."
    low = {"fp16": "float16", "bf16": "bfloat16"}.get(precision) if precision is not UNKNOWN else ""
    if not low:
        return _TRAIN_STEP
    policy = '"O1"' if low == "float16" else '"O1:bfloat16"'
    plain = changed(call, {"mixed_precision": 'mixed_precision="no"'})
    made = f"{_SCALER.format(preset='torch')}; " if low == "float16" else ""
    return f"{plain}; {made}{_REGION.format(policy=policy)}."


def _accelerator_backward(call: Call) -> str:
    loss = text(call, "loss") or "loss"
    return (
        f"{changed(call, {'loss': f'scaler.scale({loss})'})}; {_STEP}, "
        "under if accelerator.sync_gradients: where gradients are accumulated."
    )


def _unscaled_first(call: Call) -> str:
    return f"scaler.unscale(optimizer) before it; {first_line(call)} stays."


def _unscale_gradients(call: Call) -> str:
    return f"scaler.unscale({text(call, 'optimizer') or 'optimizer'})."


def _scaler_settings(call: Call) -> str:
    return f"scaler = {scaler(call, 'torch', {name: name for name in _SETTINGS})}."


# -- Lightning


def _is_float32(call: Call) -> bool:
    written = literal(text(call, "precision")) if "precision" in call.arguments else "32-true"
    return str(written) in ("32", "32-true", "64", "64-true")


def _trainer(call: Call) -> str | None:
    if _is_float32(call):
        return None
    plain = 'precision="32-true"' if "precision" in call.arguments else "no such plugin"
    return (
        f"{plain}; in the LightningModule self.automatic_optimization = False, and a training_step "
        "that calls step = ampbridge.train_step(loss_fn, self, optimizer, recipe=recipe): "
        "step(*batch). --to toml writes the recipe."
    )


def _fabric(call: Call) -> str | None:
    if _is_float32(call):
        return None
    low = "bf16" not in str(literal(text(call, "precision")))
    policy = '"O1"' if low else '"O1:bfloat16"'
    plain = changed(call, {"precision": 'precision="32-true"'})
    made = f"{_SCALER.format(preset='torch')}; " if low else ""
    return f"{plain}; {made}{_REGION.format(policy=policy)}."


def _fabric_backward(call: Call) -> str:
    tensor = text(call, "tensor") or "loss"
    return f"{changed(call, {'tensor': f'scaler.scale({tensor})'})}; {_STEP}."


# -- others


def _training_arguments(call: Call) -> str | None:
    on = [name for name in ("fp16", "bf16") if text(call, name) not in (None, "False")]
    return _TRAIN_STEP if on else None


def _environment(call: Call) -> str | None:
    named = "TF_ENABLE_AUTO_MIXED_PRECISION" in call.place_of("key").text
    return "take it out; " + _TRAIN_STEP if named else None


# Qualified name -> what to write; None where the call has nothing of mixed precision.
HOW: Mapping[str, Callable[[Call], str | None]] = {
    "apex.amp.initialize": _initialize,
    "apex.amp.scale_loss": _scale_loss,
    "apex.amp.master_params": _master_params,
    **{
        f"apex.amp.{n}": partial(_registered, k)
        for k, n in (("deny", "register_float_function"), ("allow", "register_half_function"))
    },
    "accelerate.Accelerator": _accelerator,
    "accelerate.Accelerator.backward": _accelerator_backward,
    "accelerate.Accelerator.clip_grad_norm_": _unscaled_first,
    "accelerate.Accelerator.clip_grad_value_": _unscaled_first,
    "accelerate.Accelerator.unscale_gradients": _unscale_gradients,
    "accelerate.GradScalerKwargs": _scaler_settings,
    "lightning.pytorch.Trainer": _trainer,
    "lightning.fabric.Fabric": _fabric,
    "lightning.fabric.Fabric.backward": _fabric_backward,
    "lightning.fabric.Fabric.clip_gradients": _unscaled_first,
    "transformers.TrainingArguments": _training_arguments,
    "paddlenlp.trainer.TrainingArguments": _training_arguments,
    **dict.fromkeys(("os.environ.__setitem__", "os.environ.setdefault", "os.putenv"), _environment),
    **dict.fromkeys(
        (
            "torch.set_autocast_enabled",
            "torch.set_autocast_dtype",
            "torch.set_autocast_gpu_dtype",
            "torch.set_autocast_cpu_dtype",
        ),
        _always("with ampbridge.autocast('O1'): around what is to run so"),
    ),
    **dict.fromkeys(
        (
            "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
            "torch.distributed.fsdp.MixedPrecision",
        ),
        _always("fully_shard (FSDP2), with which ampbridge.GradScaler works"),
    ),
    **dict.fromkeys(
        ("torch.nn.Module.half", "torch.nn.Module.bfloat16"),
        _always(
            "ampbridge.decorate(model, optimizer, ampbridge.Policy('O2', master_weights=False))"
        ),
    ),
}

REPLACEMENTS: Mapping[str, Replacement] = {name: partial(instead, how) for name, how in HOW.items()}


def replacements(calls: Sequence[Call]) -> Mapping[str, Replacement]:
    """Those of a script that depend on its precision: without a scaler, what scales stays."""
    made = [call for call in calls if call.name in _PRECISIONS]
    scales = any(literal(text(call, _PRECISIONS[call.name])) not in _UNSCALED for call in made)
    return {} if scales or not made else dict.fromkeys(_SCALING, lambda call: None)


_PRECISIONS: Mapping[str, str] = {
    "accelerate.Accelerator": "mixed_precision",
    "lightning.fabric.Fabric": "precision",
}
_UNSCALED = ("no", "bf16", "bf16-mixed", "32", "32-true", "64", "64-true", 32, 64)
_SCALING = (
    "accelerate.Accelerator.backward",
    "accelerate.Accelerator.clip_grad_norm_",
    "accelerate.Accelerator.clip_grad_value_",
    "accelerate.Accelerator.unscale_gradients",
    "lightning.fabric.Fabric.backward",
    "lightning.fabric.Fabric.clip_gradients",
)


def anything_else(call: Call) -> None:
    """A call of mixed precision that nothing here knows how to write otherwise."""
    instead(_always(_TRAIN_STEP), call)
