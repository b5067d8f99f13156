"""NVIDIA's apex.amp, which was removed from apex in May 2025.

The levels and signatures are those of its last edition, apex/amp/frontend.py; what O1 casts stands in
apex/amp/lists, how scales move in apex/amp/scaler.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ampbridge.errors import PolicyError
from ampbridge.policies import op_table
from ampbridge_port.dialect import Call, Dialect, Draft, Name, NotKnown
from ampbridge_port.readers import scaling
from ampbridge_port.readers.torch import dtype_name, tell_of_pure


class Level(NamedTuple):
    """What an ``opt_level`` stands for, in apex's words."""

    level: str
    cast_model_type: str | None
    keep_batchnorm_fp32: bool | None
    master_weights: bool | None
    loss_scale: str | float


LEVELS: Mapping[str, Level] = {
    "O0": Level("O0", "float32", None, False, 1.0),
    "O1": Level("O1", None, None, None, "dynamic"),
    "O2": Level("O2", "float16", True, True, "dynamic"),
    "O3": Level("O2", "float16", False, False, 1.0),
}

# apex's lists put these in float32 besides those of torch.autocast.
O1_DENY = ("ctc_loss", "gelu", "grid_sample", "std", "var")

INIT_SCALE, MAX_SCALE = 2.0**16, 2.0**24


def initialize(call: Call, draft: Draft) -> None:
    """``amp.initialize(models, optimizers, enabled=True, opt_level="O1", loss_scale=None, ...)``."""
    try:
        enabled = call.flag("enabled", True)
        name = call.value("opt_level", "O1")
    except NotKnown as error:
        draft.unknown["policy.level"] = draft.unknown["scaler.enabled"] = error.place
        return
    if not enabled:
        draft.set("policy.level", "O0")
        scaling.never(draft)
        return
    if not isinstance(name, str) or name not in LEVELS:
        draft.find(
            "note", call.place_of("opt_level"), f"apex has no opt_level {name!r}: it refuses."
        )
        draft.unknown["policy.level"] = call.place_of("opt_level")
        return
    level = LEVELS[name]
    _policy(call, draft, level)
    _scaler(call, draft, level)
    _tell_of_losses(call, draft)
    draft.comments["policy.level"] = f"opt_level={name!r}"


def _policy(call: Call, draft: Draft, level: Level) -> None:
    draft.set("policy.level", level.level)
    draft.take("policy.output_dtype", call, "cast_model_outputs", None, dtype_name)
    if level.level == "O0":
        return
    draft.take(
        "policy.dtype",
        call,
        "cast_model_type",
        None,
        lambda written: dtype_name(written) or level.cast_model_type or "float16",
    )
    draft.set("policy.lists", "torch")
    if level.level == "O1":
        allowed = draft.settings.get("policy.allow", ())
        denied = {*draft.settings.get("policy.deny", ()), *O1_DENY} - {*allowed}
        draft.set("policy.deny", sorted(denied))
        draft.comments["policy.deny"] = "float32 in apex's lists"
        return
    draft.take(
        "policy.master_weights",
        call,
        "master_weights",
        None,
        lambda written: level.master_weights if written is None else written,
    )
    tell_of_pure(draft, call, "float16")
    _tell_of_batch_norm(call, draft, level)


def _tell_of_batch_norm(call: Call, draft: Draft, level: Level) -> None:
    try:
        written = call.value("keep_batchnorm_fp32", None)
    except NotKnown as error:
        draft.find("unknown", error.place, "Whether batch normalization stays float32.")
        return
    keeps = level.keep_batchnorm_fp32 if written is None else str(written) == "True"
    if not keeps:
        place = call.place_of("keep_batchnorm_fp32")
        draft.find("lost", place, "Batch normalization has float16 weights; O2 keeps them float32.")


def _scaler(call: Call, draft: Draft, level: Level) -> None:
    try:
        written = call.value("loss_scale", None)
    except NotKnown as error:
        scaling.like(draft, "apex")
        draft.unknown["scaler.init_scale"] = draft.unknown["scaler.dynamic"] = error.place
        return
    scale = scaling.number(level.loss_scale if written is None else written)
    if scale == "dynamic":
        scaling.like(draft, "apex")
        _bounds(call, draft)
    elif scale == 1.0:
        scaling.never(draft)
    else:
        scaling.fixed(draft, "apex", scale)
        draft.comments["scaler.init_scale"] = f"loss_scale={call.place_of('loss_scale').text}"
        draft.find(
            "lost",
            call.place_of("loss_scale"),
            "apex applies infinite gradients too, where the scale is fixed; here such a step is skipped.",
        )


def _bounds(call: Call, draft: Draft) -> None:
    if "min_loss_scale" in call.arguments:
        draft.take("scaler.min_scale", call, "min_loss_scale", None, scaling.number)
    if "max_loss_scale" in call.arguments:
        draft.take("scaler.max_scale", call, "max_loss_scale", MAX_SCALE, scaling.number)
        largest = draft.settings.get("scaler.max_scale")
        if isinstance(largest, float) and largest < INIT_SCALE:
            draft.set("scaler.init_scale", largest)


def _tell_of_losses(call: Call, draft: Draft) -> None:
    try:
        losses = call.value("num_losses", 1)
    except NotKnown:
        losses = "several"
    if losses != 1:
        place = call.place_of("num_losses")
        draft.find("lost", place, f"{losses} losses, each with its scale; a recipe has one scaler.")


def register_float_function(call: Call, draft: Draft) -> None:
    """``amp.register_float_function(module, name)``: in float32."""
    _register(call, draft, "policy.deny", "policy.allow")


def register_half_function(call: Call, draft: Draft) -> None:
    """``amp.register_half_function(module, name)``: in float16."""
    _register(call, draft, "policy.allow", "policy.deny")


def _register(call: Call, draft: Draft, key: str, other: str) -> None:
    try:
        module, name = call.value("module", None), call.value("name", None)
    except NotKnown as error:
        draft.unknown[key] = error.place
        return
    op = _canonical(module, name)
    if op is None:
        _tell_of_function(call, draft)
        return
    draft.set(key, sorted({*draft.settings.get(key, ()), op}))
    kept = [entry for entry in draft.settings.get(other, ()) if entry != op]
    if other in draft.settings:
        draft.set(other, kept or None)


def _canonical(module: Any, name: Any) -> str | None:
    if not isinstance(module, Name):
        return None
    try:
        return op_table.canonical(f"torch:{module.qualified}.{name}")
    except PolicyError:
        return None


def register_promote_function(call: Call, draft: Draft) -> None:
    """``amp.register_promote_function(module, name)``: in the widest dtype that arrives."""
    draft.find("lost", call.place, "A recipe has no list of promoted ops.")


def _tell_of_function(call: Call, draft: Draft) -> None:
    draft.find(
        "lost",
        call.place,
        "A function of one's own, or one that no list here knows: a recipe lists ops.",
        "name the ops inside of it under allow or deny.",
    )


_REGISTER = ("module", "name")

DIALECT = Dialect(
    framework="apex",
    signatures={
        "apex.amp.initialize": (
            "models",
            "optimizers",
            "enabled",
            "opt_level",
            "cast_model_type",
            "patch_torch_functions",
            "keep_batchnorm_fp32",
            "master_weights",
            "loss_scale",
            "cast_model_outputs",
            "num_losses",
            "verbosity",
            "min_loss_scale",
            "max_loss_scale",
        ),
        "apex.amp.scale_loss": (
            "loss",
            "optimizers",
            "loss_id",
            "model",
            "delay_unscale",
            "delay_overflow_check",
        ),
        "apex.amp.master_params": ("optimizer",),
        "apex.amp.register_float_function": _REGISTER,
        "apex.amp.register_half_function": _REGISTER,
        "apex.amp.register_promote_function": _REGISTER,
        "apex.amp.float_function": ("fn",),
        "apex.amp.half_function": ("fn",),
        "apex.amp.promote_function": ("fn",),
    },
    aliases={
        "apex.amp.frontend.initialize": "apex.amp.initialize",
        "apex.amp.handle.scale_loss": "apex.amp.scale_loss",
    },
    handlers={
        "apex.amp.initialize": initialize,
        "apex.amp.register_float_function": register_float_function,
        "apex.amp.register_half_function": register_half_function,
        "apex.amp.register_promote_function": register_promote_function,
        "apex.amp.float_function": _tell_of_function,
        "apex.amp.half_function": _tell_of_function,
        "apex.amp.promote_function": _tell_of_function,
    },
    words=("apex",),
)
