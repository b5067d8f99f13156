"""NVIDIA's apex.amp, which was removed from apex in May 2025.

The levels and signatures are those of its last edition, apex/amp/frontend.py; what O1 casts stands in
apex/amp/lists, how scales move in apex/amp/scaler.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ampbridge.errors import PolicyError
from ampbridge.policies import op_table
from ampbridge_port.reader.dialects import steps
from ampbridge_port.reader.dialects.calls import Call, Dialect, Draft, Handler, NotKnown, doubting
from ampbridge_port.reader.dialects.torch import tell_of_pure


class Level(NamedTuple):
    """What an ``opt_level`` stands for, in apex's words."""

    level: str
    keep_batchnorm_fp32: bool | None
    master_weights: bool | None
    loss_scale: str | float


LEVELS: Mapping[str, Level] = {
    "O0": Level("O0", None, False, 1.0),
    "O1": Level("O1", None, None, "dynamic"),
    "O2": Level("O2", True, True, "dynamic"),
    "O3": Level("O2", False, False, 1.0),
}
O1_DENY = ("ctc_loss", "gelu", "grid_sample", "std", "var")
"""apex's lists put these in float32 besides those of torch.autocast."""
INIT_SCALE, MAX_SCALE = 2.0**16, 2.0**24


@doubting("policy.level", "scaler.enabled")
def initialize(call: Call, draft: Draft) -> None:
    """``amp.initialize(models, optimizers, enabled=True, opt_level="O1", loss_scale=None, ...)``."""
    enabled, name = call.flag("enabled", True), call.value("opt_level", "O1")
    if not enabled:
        draft.set("policy.level", "O0")
        steps.never(draft)
        return
    if name not in LEVELS:
        draft.note(call.place_of("opt_level"), f"apex has no opt_level {name!r}: it refuses.")
        draft.doubt(call.place_of("opt_level"), "policy.level")
        return
    level = LEVELS[name]
    _policy(call, draft, level)
    _scaler(call, draft, level)
    losses = call.known("num_losses", 1, "several")
    if losses != 1:
        message = f"{losses} losses, each with its scale; a recipe has one scaler."
        draft.lost(call.place_of("num_losses"), message)
    draft.comments["policy.level"] = f"opt_level={name!r}"


def _policy(call: Call, draft: Draft, level: Level) -> None:
    draft.set("policy.level", level.level)
    draft.take("policy.output_dtype", call, "cast_model_outputs", None, steps.dtype_name)
    if level.level == "O0":
        return
    draft.take("policy.dtype", call, "cast_model_type", None, steps.low_dtype)
    draft.set("policy.lists", "torch")
    if level.level == "O1":
        said = draft.settings.get
        denied = {*said("policy.deny", ()), *O1_DENY} - {*said("policy.allow", ())}
        draft.set("policy.deny", sorted(denied))
        draft.comments["policy.deny"] = "float32 in apex's lists"
        return
    draft.take(
        "policy.masters",
        call,
        "master_weights",
        None,
        lambda w: "float32" if (level.master_weights if w is None else w) else "none",
    )
    tell_of_pure(draft, call, "float16")
    try:
        written = call.value("keep_batchnorm_fp32", None)
    except NotKnown as error:
        draft.find("unknown", error.place, "Whether batch normalization stays float32.")
        return
    if not (level.keep_batchnorm_fp32 if written is None else str(written) == "True"):
        place = call.place_of("keep_batchnorm_fp32")
        draft.lost(place, "Batch normalization has float16 weights; O2 keeps them float32.")


@doubting("scaler.init_scale", "scaler.dynamic")
def _scaler(call: Call, draft: Draft, level: Level) -> None:
    steps.like(draft, "apex")
    written = call.value("loss_scale", None)
    scale = steps.number(level.loss_scale if written is None else written)
    if scale == "dynamic":
        bounds = {"min_loss_scale": "min_scale", "max_loss_scale": "max_scale"}
        steps.take_numbers(call, draft, bounds)
        largest = draft.settings.get("scaler.max_scale")
        if isinstance(largest, float) and largest < INIT_SCALE:
            draft.set("scaler.init_scale", largest)
    elif scale == 1.0:
        steps.never(draft)
    else:
        steps.fixed(draft, "apex", scale)
        draft.comments["scaler.init_scale"] = f"loss_scale={call.place_of('loss_scale').text}"
        there = "apex applies infinite gradients too, where the scale is fixed"
        draft.lost(call.place_of("loss_scale"), f"{there}; here such a step is skipped.")


def register(key: str, other: str) -> Handler:
    """``amp.register_half_function(module, name)`` and its like."""

    @doubting(key)
    def handle(call: Call, draft: Draft) -> None:
        module, name = call.value("module", None), call.value("name", None)
        try:
            op = op_table.canonical(f"torch:{getattr(module, 'qualified', '')}.{name}")
        except PolicyError:
            of_ones_own(call, draft)
            return
        draft.set(key, sorted({*draft.settings.get(key, ()), op}))
        if other in draft.settings:
            draft.set(other, [entry for entry in draft.settings[other] if entry != op] or None)

    return handle


def of_ones_own(call: Call, draft: Draft) -> None:
    """``@amp.half_function``, on a function; ``amp.register_promote_function``."""
    message = "A function of one's own, a promoted one, or one that no list here knows: a recipe lists ops."
    draft.lost(call.place, message, "name the ops inside of it under allow or deny.")


DIALECT = Dialect(
    "apex",
    {
        "apex.amp.initialize": (
            "models optimizers enabled opt_level cast_model_type patch_torch_functions "
            "keep_batchnorm_fp32 master_weights loss_scale cast_model_outputs num_losses "
            "verbosity min_loss_scale max_loss_scale",
            initialize,
        ),
        "apex.amp.scale_loss": (
            "loss optimizers loss_id model delay_unscale delay_overflow_check",
            None,
        ),
        "apex.amp.master_params": ("optimizer", None),
        "apex.amp.register_float_function": (
            "module name",
            register("policy.deny", "policy.allow"),
        ),
        "apex.amp.register_half_function": ("module name", register("policy.allow", "policy.deny")),
        "apex.amp.register_promote_function": ("module name", of_ones_own),
        **{
            f"apex.amp.{kind}_function": ("fn", of_ones_own)
            for kind in ("float", "half", "promote")
        },
    },
)
