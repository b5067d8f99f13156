"""Mixed precision of JAX: policies of jmp, dtypes of flax's layers, their loss scales, optax.

There are no op lists: jmp casts trees, flax casts layer by layer, and what is between layers computes in
what arrives. Float32 parameters that are used in low precision are read as O1, low ones as O2 without
masters, with the lists of TensorFlow's graph optimizer, which are nearest (see tensorflow.py).

Sources: jmp/_src/{policy,loss_scale}.py of jmp 0.0.4; flax/training/dynamic_scale.py of flax 0.12;
optax/transforms/{_clipping,_accumulation,_combining}.py of optax 0.2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ampbridge.policies.policy import LOW_DTYPES
from ampbridge_port.reader.dialects import steps
from ampbridge_port.reader.dialects.calls import (
    Argument,
    Call,
    Dialect,
    Draft,
    Handler,
    Name,
    NotKnown,
    Object,
    doubting,
)

POLICY, APPLIED, OUTPUT, RETURNED = "policy", "applied", "output dtype", "outputs are cast"
LOW, FLOAT32, SCALE, MICRO = "low", "float32 layers", "loss scale", "micro-batches"
"""What is kept in mind until the whole program has been seen, in ``Draft.seen``."""

_DTYPES: Mapping[str, str] = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "full": "float32", "f64": "float64",
    **{name: name for name in (*LOW_DTYPES, "float32", "float64")},
}  # fmt: skip
_KEEP = "name the layers that stay float32 under keep: --set policy.keep=[...]"


# -- policies


def _dtype(call: Call, argument: str, usual: str = "float32") -> str:
    """The name of a dtype; ``usual`` where none is passed.

    Raises:
        NotKnown: for what is none that is known here.
    """
    value = call.value(argument, None)
    if isinstance(value, Object):  # jnp.dtype("bfloat16")
        value = value.call.value("dtype", "")
    name = value.last if isinstance(value, Name) else usual if value is None else value
    if name not in _DTYPES:
        raise NotKnown(call.place_of(argument))
    return _DTYPES[name]


@doubting("policy.level", "policy.dtype")
def make_policy(call: Call, draft: Draft) -> None:
    """``jmp.Policy(param_dtype, compute_dtype, output_dtype)``."""
    draft.seen.setdefault(POLICY, call.place)
    draft.seen.setdefault(OUTPUT, _dtype(call, "output_dtype"))
    _set(call, draft, _dtype(call, "param_dtype"), _dtype(call, "compute_dtype"))


@doubting("policy.level", "policy.dtype")
def get_policy(call: Call, draft: Draft) -> None:
    """``jmp.get_policy("params=float32,compute=bfloat16,output=float32")``."""
    draft.seen.setdefault(POLICY, call.place)
    text = call.value("policy_name", "")
    if "half" in text:
        message = "half is float16, which the recipe has, but on TPUs, where it is bfloat16."
        draft.note(call.place, message, "write the dtype in its place.")
    parts = (text if "=" in text else f"params={text}").replace("half", "float16").split(",")
    said = {part[:1]: _DTYPES[part.partition("=")[2]] for part in parts}
    stored = said.get("p", "float32")
    computed = said.get("c", stored)
    draft.seen.setdefault(OUTPUT, said.get("o", computed))
    _set(call, draft, stored, computed)


def _set(call: Call, draft: Draft, stored: str, computed: str) -> None:
    """The policy of all layers; one that is unlike another before it leaves the level unknown."""
    level = "O0" if computed == "float32" else "O1" if stored == "float32" else "O2"
    before = draft.settings.get("policy.level", level), draft.settings.get("policy.dtype", computed)
    if stored not in ("float32", computed) or computed == "float64":
        what = f"Parameters are {stored} here, and are used in {computed}"
    elif before != (level, before[1] if level == "O0" else computed):
        what = "Layers of this line and of those before have different dtypes"
    elif "policy.level" in draft.unknown:
        return
    else:
        draft.set("policy.level", level)
        if level != "O0":
            draft.set_policy(level, computed, "tensorflow")
            draft.set("policy.masters", "none" if level == "O2" else None)
        draft.comments["policy.level"] = call.place.text
        draft.seen.setdefault(LOW, call.place)
        return
    draft.find("unknown", call.place, f"{what}: a recipe has one policy for all of a step.", _KEEP)
    draft.doubt(call.place, "policy.level")


def cast_to_compute(call: Call, draft: Draft) -> None:
    """``policy.cast_to_compute(params)``; a policy that casts no parameters lowers no product."""
    if re.search(r"param|model|state|weight|\b(self|net|p)\b", call.place_of("x").text, re.I):
        draft.seen[APPLIED] = call.place


def cast_to_output(call: Call, draft: Draft) -> None:
    """``policy.cast_to_output(logits)``."""
    draft.seen[RETURNED] = call.place


def not_read(call: Call, draft: Draft) -> None:
    """Policies of some modules, or made of others; casts by hand."""
    message = "What this casts is not known here: a recipe has one policy for all of a step."
    draft.find("unknown", call.place, message, _KEEP)
    draft.doubt(call.place, "policy.level")


@doubting("policy.level")
def layer(call: Call, draft: Draft) -> None:
    """A layer of flax with a dtype, or a module of linen that is made with one for its layers."""
    call = replace(call, arguments={**call.arguments, **call.extra}, unpacked=None)
    stored, computed = _dtype(call, "param_dtype"), _dtype(call, "dtype")
    if stored == "float32" and call.value("dtype", None) is None:
        return
    if stored == computed == "float32":
        draft.seen.setdefault(FLOAT32, []).append(call)
        return
    if LOW not in draft.seen and computed in LOW_DTYPES:
        message = f"Layers without this dtype are float32 there; the recipe runs all in {computed}."
        draft.lost(call.place, message, _KEEP)
    _set(call, draft, stored, computed)


# -- loss scaling


def flax_scale(call: Call, draft: Draft) -> None:
    """``DynamicScale(growth_factor, backoff_factor, growth_interval, fin_steps, scale, minimum_scale)``."""
    keys = {name: name for name in ("growth_factor", "backoff_factor", "growth_interval")}
    _take_scale(call, draft, "flax", {**keys, "scale": "init_scale", "minimum_scale": "min_scale"})
    if "scaler.growth_interval" in draft.settings:  # it compares before it counts: one step more
        draft.settings["scaler.growth_interval"] += 1


def jmp_scale(call: Call, draft: Draft) -> None:
    """``jmp.DynamicLossScale(loss_scale, counter, period, factor, min_loss_scale)``."""
    keys = {"period": "growth_interval", "factor": "growth_factor", "min_loss_scale": "min_scale"}
    _take_scale(call, draft, "jmp", {"loss_scale": "init_scale", **keys})
    if "scaler.growth_factor" in draft.settings:
        draft.set("scaler.backoff_factor", 1 / draft.settings["scaler.growth_factor"])
    if "min_loss_scale" in call.arguments:
        message = "jax.jit forgets min_loss_scale, so that the floor is 1; the recipe keeps it."
        draft.lost(call.place_of("min_loss_scale"), message, "--set scaler.min_scale=1.0")


@doubting("scaler.init_scale")
def static_scale(call: Call, draft: Draft) -> None:
    """``jmp.StaticLossScale(loss_scale)``."""
    _take_scale(call, draft, "jmp", {})
    draft.set("scaler.dynamic", False)
    steps.fixed(draft, "jmp", steps.number(_with_numbers(call).value("loss_scale", None)))


def no_scale(call: Call, draft: Draft) -> None:
    """``jmp.NoOpLossScale()``."""
    _take_scale(call, draft, "jmp", {})
    steps.never(draft, call.place.text)


def _take_scale(call: Call, draft: Draft, preset: str, keys: Mapping[str, str]) -> None:
    other = draft.seen.setdefault(SCALE, call.place)
    if other != call.place:
        message = f"A recipe has one loss scale: this one, and not that of line {other.line}."
        draft.lost(call.place, message, "port a file with the one that is meant")
    for counter in {"fin_steps", "counter"} & call.arguments.keys():
        message = f"A recipe counts finite steps from 0, whatever {counter} is."
        draft.lost(call.place_of(counter), message)
    steps.scaler(_with_numbers(call), draft, preset, keys)


def _with_numbers(call: Call) -> Call:
    """A call with the numbers of its arrays: ``jnp.asarray(2.0**15)``."""
    arguments = {
        key: replace(each, evaluate=partial(_number, each)) for key, each in call.arguments.items()
    }
    return replace(call, arguments=arguments)


def _number(argument: Argument) -> Any:
    value = argument.evaluate()
    return value.call.value("object", None) if isinstance(value, Object) else value


# -- optax

_CLIPS: Mapping[str, tuple[str, str]] = {
    "optax.clip_by_global_norm": ("clip_norm", "max_norm"),
    "optax.clip": ("clip_value", "max_delta"),
}


def clip(call: Call, draft: Draft) -> None:
    """``optax.clip_by_global_norm(max_norm)`` and ``optax.clip(max_delta)``."""
    steps.clip(draft, _CLIPS[call.name][0], call, _CLIPS[call.name][1])


def clip_array(call: Call, draft: Draft) -> None:
    """``jax.tree.map(lambda g: jnp.clip(g, -1.0, 1.0), grads)``."""
    if re.search(r"grad|^g\b", call.place_of("arr").text, re.I):
        steps.clip_within(call, draft, "min", "max")


def may_clip(call: Call, draft: Draft) -> None:
    """``jnp.minimum(1.0, most / optax.global_norm(grads))``."""
    if re.search(r"(?:^|\W|grad_?|global_?|g_?|max_?)norm", call.place.text, re.I):
        message = "This looks at a norm; whether it clips gradients is not read."
        draft.find("unknown", call.place, message, "step.clip_norm in the recipe, if it does.")


def chain(call: Call, draft: Draft) -> None:
    """``optax.chain(clip, optimizer)``: what is first clips gradients, and what follows updates."""
    clips = False
    for number, argument in enumerate(call.extra.values()):
        try:
            name = getattr(argument.evaluate(), "qualified", "")
        except NotKnown:
            name = ""
        if name in _CLIPS and number > 0:
            draft.forget(f"step.{_CLIPS[name][0]}")
            message = (
                "It clips what those in front of it make of gradients; a recipe clips gradients."
            )
            draft.lost(argument.place, message, "put it first in the chain, if that was meant.")
        elif name.startswith("optax.MultiSteps") and clips:
            message = "It clips each micro-batch; a recipe clips the average of all of a step."
            draft.lost(argument.place, message, "optax.MultiSteps(optax.chain(...), ...)")
        clips |= name in _CLIPS


def multi_steps(call: Call, draft: Draft) -> None:
    """``optax.MultiSteps(opt, every_k_schedule, use_grad_mean=True, should_skip_update_fn=None)``."""
    draft.seen[MICRO] = call.place
    if isinstance(call.known("every_k_schedule", 1), Name):  # a schedule
        draft.doubt(call.place_of("every_k_schedule"), "step.accumulate")
    else:
        draft.take("step.accumulate", call, "every_k_schedule", 1, steps.micro_batches)
    if not call.flag("use_grad_mean", True):
        message = "The gradients of micro-batches are summed here; a recipe averages them."
        draft.lost(call.place_of("use_grad_mean"), message, "multiply the loss by their number")
    if call.given("should_skip_update_fn"):
        message = "It leaves out micro-batches, and takes others for them; a recipe drops the step."
        draft.lost(call.place_of("should_skip_update_fn"), message, "step.on_overflow")


def of_some(call: Call, draft: Draft) -> None:
    """``optax.masked(inner, mask)`` and ``optax.multi_transform(transforms, labels)``."""
    if "clip" in call.place.text:
        draft.forget("step.clip")
        message = "It clips a part of the gradients; a recipe clips all or none, and this one none."
        draft.lost(call.place, message, "step.clip_norm or step.clip_value")


def lost(message: str) -> Handler:
    """A call that a recipe has nothing of."""
    return lambda call, draft: draft.lost(call.place, f"{message}; a recipe has nothing of it.")


# -- when all has been seen


def finish(draft: Draft) -> None:
    """What policies and scales mean that stand alone."""
    seen, settings = draft.seen, draft.settings
    if POLICY in seen and APPLIED not in seen and settings.get("policy.level") != "O0":
        draft.doubt(seen[POLICY], "policy.level")
    if SCALE in seen and not draft.says("policy.level"):
        draft.unknown["policy.level"] = seen[SCALE]
    if settings.get("policy.level") == "O0":
        return
    for each in seen.get(FLOAT32, ()):
        if "Norm" not in each.name:  # which are float32 by the recipe's lists
            draft.lost(each.place, "This layer computes in float32 there.", _KEEP)
    if not draft.says("scaler."):
        steps.never(draft, "no loss scale in what was read")
    elif MICRO in seen and settings.get("scaler.enabled", True):
        message = (
            "The scale follows micro-batches here, and what an overflow in one does is up to the "
        )
        message += "loop; a recipe's scale follows steps, and it drops the step."
        draft.lost(seen[MICRO], message, "step.on_overflow, and scaler.growth_interval in steps")
    if RETURNED in seen and seen.get(OUTPUT) in LOW_DTYPES:
        draft.set("policy.output_dtype", seen[OUTPUT])
    elif POLICY in seen and RETURNED not in seen:
        message = "Nothing here casts outputs by this policy; those of a recipe are float32."
        draft.note(seen[POLICY], message, "--set policy.output_dtype=..., if they stay low.")
    if LOW in seen:
        lists = "the recipe has those of TensorFlow's graph optimizer, which are nearest: "
        lists += "normalizations and losses in float32, all else in what arrives."
        draft.note(seen[LOW], f"JAX has no op lists; {lists}")
    if settings.get("policy.level") == "O2":
        draft.lost(seen[LOW], "optax keeps slots in the dtype of low parameters; O2 in float32.")


# fmt: off
_POLICIES = ("jmp.Policy", "jmp.get_policy")
LAYERS = ("flax.linen.Module", *(
    f"flax.{package}.{name}" for package in ("nnx", "linen") for name in (
        "Linear", "LinearGeneral", "Dense", "DenseGeneral", "Einsum", "Conv", "ConvLocal", "ConvTranspose",
        "Embed", "BatchNorm", "LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm", "MultiHeadAttention",
        "MultiHeadDotProductAttention", "SelfAttention", "LSTMCell", "OptimizedLSTMCell", "GRUCell",
    )
))
_LOST: Mapping[str, str] = {
    "optax.adaptive_grad_clip": "It clips relative to the parameters",
    "optax.clip_by_block_rms": "It clips root mean squares",
    "optax.apply_if_finite": "It skips updates that are not finite, and applies them after enough in a row",
    "optax.zero_nans": "A gradient of NaN becomes 0, and the step is taken",
}
CALLS: Mapping[str, tuple[str, Handler | None]] = {
    "jmp.Policy": ("param_dtype compute_dtype output_dtype", make_policy),
    "jmp.get_policy": ("policy_name", get_policy),
    **{f"{policy}.cast_to_compute": ("x", cast_to_compute) for policy in _POLICIES},
    **{f"{policy}.cast_to_output": ("x", cast_to_output) for policy in _POLICIES},
    **{f"{policy}.with_output_dtype": ("output_dtype", not_read) for policy in _POLICIES},
    **dict.fromkeys(("jmp.cast_to_half", "haiku.mixed_precision.set_policy"), ("x policy", not_read)),
    "flax.training.dynamic_scale.DynamicScale": (
        "growth_factor backoff_factor growth_interval fin_steps scale minimum_scale", flax_scale,
    ),
    "jmp.DynamicLossScale": ("loss_scale counter period factor min_loss_scale", jmp_scale),
    "jmp.StaticLossScale": ("loss_scale", static_scale),
    "jmp.NoOpLossScale": ("", no_scale),
    "optax.clip_by_global_norm": ("max_norm", clip),
    "optax.clip": ("max_delta", clip),
    "jax.numpy.clip": ("arr min max", clip_array),
    **{f"jax.numpy.{name}": ("x y z", may_clip) for name in ("minimum", "maximum", "where")},
    "optax.chain": ("", chain),
    "optax.MultiSteps": ("opt every_k_schedule use_grad_mean should_skip_update_fn", multi_steps),
    **dict.fromkeys(("optax.masked", "optax.multi_transform", "optax.partition"), ("", of_some)),
    **{name: ("", lost(why)) for name, why in _LOST.items()},
    "jax.numpy.asarray": ("object", None),
    "jax.numpy.dtype": ("dtype", None),
    **dict.fromkeys(LAYERS, ("", layer)),
}
# fmt: on

DIALECT = Dialect(
    "jax",
    CALLS,
    dict.fromkeys(("jax.numpy.array", "jax.numpy.float32"), "jax.numpy.asarray"),
    finish,
    frozenset(name for name in CALLS if not name.startswith(("jmp.", "flax.training."))),
)
