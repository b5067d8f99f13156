"""Paddle's mixed precision: ``paddle.amp``, ``paddle.static.amp``, hapi, fleet, fluid, PaddleNLP's Trainer.

Signatures, defaults and rules are those of Paddle 3.3: amp/auto_cast.py, amp/grad_scaler.py,
static/amp/decorator.py, hapi/model.py, and the defaults of DistributedStrategy in
framework/distributed_strategy.proto. Those of fluid's own functions are of 1.8. PaddleNLP's are of 2.8:
paddlenlp/trainer/{training_args,trainer}.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ampbridge.policies import paddle_names as names
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

NUMBERS: Mapping[str, str] = {
    "init_loss_scaling": "init_scale",
    "incr_ratio": "growth_factor",
    "decr_ratio": "backoff_factor",
    "incr_every_n_steps": "growth_interval",
    "decr_every_n_nan_or_inf": "backoff_interval",
    "use_dynamic_loss_scaling": "dynamic",
}
TORCH_NUMBERS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
"""Paddle's scalers take torch's names too, since 3.2."""

SCALER = f"enable {' '.join(NUMBERS)} {' '.join(TORCH_NUMBERS)} enabled"
LISTS = ("custom_white_list", "custom_black_list")
STATIC = [
    "optimizer", "amp_lists", "level", "dtype", "master_weight", "master_grad",
    "init_loss_scaling", "incr_every_n_steps", "decr_every_n_nan_or_inf", "incr_ratio",
    "decr_ratio", "use_dynamic_loss_scaling", "use_amp_guard", "use_promote",
]  # fmt: skip
STATIC_OLD = [
    "optimizer", "amp_lists", "init_loss_scaling", "incr_every_n_steps",
    "decr_every_n_nan_or_inf", "incr_ratio", "decr_ratio", "use_dynamic_loss_scaling",
    "use_pure_fp16", "use_fp16_guard", "use_bf16", "use_promote",
]  # fmt: skip


# -- levels and lists


def take_level(call: Call, draft: Draft) -> None:
    """``level``, in any case; OD as what comes nearest."""
    draft.take(
        "policy.level", call, "level", "O1", lambda v: v.upper() if isinstance(v, str) else v
    )
    if draft.settings.get("policy.level") == "OD":
        draft.set("policy.level", "O1")
        draft.lost(
            call.place_of("level"),
            "OD runs the white list alone in low precision and all other ops in float32; a recipe "
            "has no such rule. O1 stands in its place: ops in neither list follow their inputs.",
            "deny the ops that must stay in float32, deny = [...] in the recipe",
        )


def take_lists(call: Call, draft: Draft, *, static: bool = False) -> None:
    """Both custom lists as canonical ops; says which entries Paddle takes no notice of."""
    for argument, key in zip(LISTS, ("policy.allow", "policy.deny"), strict=True):
        draft.set(key, None)
        if argument in call.arguments or call.unpacked is not None:
            _take_list(call, draft, argument, key, static)
    allow, deny = (set(draft.settings.get(f"policy.{key}", ())) for key in ("allow", "deny"))
    for op in sorted(allow & deny):  # Paddle moves to the white list first, then to the black one
        draft.settings["policy.allow"].remove(op)


def _take_list(call: Call, draft: Draft, argument: str, key: str, static: bool) -> None:
    place = call.place_of(argument)

    def canonical(entries: Any) -> Any:
        if not entries or isinstance(entries, str):
            return None
        reading = names.paddle_list(entries, argument, static=static)  # type: ignore[arg-type]
        told = {"ignored": reading.ignored, "lost": reading.lost, "note": reading.notes}
        for kind, remarks in told.items():
            for remark in remarks.values():
                draft.find(kind, place, remark.message, remark.hint)  # type: ignore[arg-type]
        return list(reading.canonical) or None

    draft.take(key, call, argument, None, canonical)
    draft.comments.pop(key, None)
    if key in draft.settings:
        draft.comments[key] = f"{argument}: {place.text}"


def _tell_of_odd_switch(call: Call, draft: Draft, hint: str) -> None:
    """``auto_cast("bfloat16")``: the first parameter is a switch, which a word or a number turns on."""
    switch = call.known("enable", True)
    if isinstance(switch, (str, float)) or (isinstance(switch, int) and switch not in (0, 1)):
        message = (
            f"{call.name.rpartition('.')[2]}({switch!r}) sets enable, its first parameter, and "
            "says nothing else."
        )
        draft.note(call.place_of("enable"), message, hint)


# -- dynamic graphs


def auto_cast(call: Call, draft: Draft) -> None:
    """``paddle.amp.auto_cast``: the region."""
    on = _enabled(call, draft, "enable")
    _tell_of_odd_switch(call, draft, 'auto_cast(dtype="bfloat16")')
    draft.set("policy.lists", "paddle")
    if on is False:
        return
    if on:
        take_level(call, draft)
    draft.take("policy.dtype", call, "dtype", "float16", steps.dtype_name)
    draft.seen["region"] = call.place
    take_lists(call, draft)
    _take_promotion(call, draft)


def autocast(call: Call, draft: Draft) -> None:
    """``paddle.autocast``: torch's spelling; always O1, whatever the device."""
    on = _enabled(call, draft, "enabled")
    draft.set("policy.lists", "paddle")
    if on:
        draft.set("policy.level", "O1")
    if on is not False:
        draft.take("policy.dtype", call, "dtype", "float16", steps.low_dtype)
        draft.seen["region"] = call.place


def _enabled(call: Call, draft: Draft, argument: str) -> bool | None:
    """Whether a region is on; says so in the draft where it is not, or where that is not known (None)."""
    try:
        on = call.flag(argument, True)
    except NotKnown as error:
        draft.doubt(error.place, "policy.level")
        return None
    if not on and "decorated" in draft.seen:  # its parameters are low all the same
        message = (
            "A region without casts in a training at O2: a recipe has one policy for all of a step."
        )
        draft.lost(call.place, message, "name its ops under deny, or its layers under keep.")
    elif not on:
        draft.set("policy.level", "O0")
    return on


def _take_promotion(call: Call, draft: Draft) -> None:
    """``use_promote=False``."""
    promotes = call.known("use_promote", True, True)
    place = call.place_of("use_promote")
    if not promotes and draft.settings.get("policy.level") == "O2":
        draft.lost(
            place,
            "use_promote=False casts float32 inputs of ops outside the black list down; a "
            "recipe's ops outside both lists follow their inputs.",
            "list the ops that must run in low precision, allow = [...] in the recipe",
        )
    elif not promotes:
        draft.ignored(place, "use_promote=False has no effect but at O2.")


def decorate(call: Call, draft: Draft) -> None:
    """``paddle.amp.decorate``: parameters in low precision at O2; nothing at O1."""
    try:
        level = call.value("level", "O1")
    except NotKnown as error:
        if "policy.level" not in draft.settings:
            draft.unknown.setdefault("policy.level", error.place)
        level = "O2"
    if str(level).upper() != "O2":
        for argument in ("master_weight", "save_dtype", "master_grad", "excluded_layers"):
            if call.given(argument):
                message = f"decorate(level={level!r}) changes nothing; {argument} has no effect."
                draft.ignored(call.place_of(argument), message, "decorate(level='O2')")
        return
    draft.seen["decorated"] = call.place
    if "policy.lists" not in draft.settings:  # a region says it, wherever it stands
        if "policy.level" not in draft.unknown:
            draft.set("policy.level", "O2")
        draft.take("policy.dtype", call, "dtype", "float16", steps.dtype_name)
    if call.given("optimizers"):  # decorate gives masters to the optimizers that it is passed
        draft.take("policy.masters", call, "master_weight", None, _masters)
        draft.seen["decorated with optimizers"] = call.place
    else:
        draft.seen.setdefault("decorated alone", call.place)
    draft.take("decorate.save_dtype", call, "save_dtype", None, steps.dtype_name)
    if draft.settings.get("decorate.save_dtype") == "float64":
        draft.set("decorate.save_dtype", "float32")
        message = "A recipe saves in float32, not float64; the values are the same."
        draft.note(call.place_of("save_dtype"), message)
    draft.take_flag("decorate.master_grad", call, "master_grad", False)
    _take_kept(call, draft)


def _take_kept(call: Call, draft: Draft) -> None:
    """``excluded_layers``: classes by name, layers by where they stand in the model."""
    if "excluded_layers" not in call.arguments:
        return
    argument = call.arguments["excluded_layers"]
    parts = argument.parts()
    model = call.arguments["models"].place.text if "models" in call.arguments else ""
    kept: list[str] = []
    for entry in [argument] if parts is None else parts.values():
        name = _kept(entry, model)
        if name is None:
            draft.doubt(entry.place, "policy.keep")
            return
        kept.extend(name)
    draft.set("policy.keep", sorted(set(kept)) or None)
    draft.comments["policy.keep"] = f"excluded_layers={argument.place.text}"


def _kept(entry: Argument, model: str) -> list[str] | None:
    try:
        value = entry.evaluate()
    except NotKnown as error:
        name = error.place.text.removeprefix(f"{model}.")
        inside = model and name != error.place.text and name.replace(".", "").isidentifier()
        return [name] if inside else None
    if isinstance(value, Name) and not isinstance(value, Object):
        return [value.last]
    return [] if value is None else None


def optimizer(call: Call, draft: Draft) -> None:
    """``multi_precision=True``: an optimizer that has masters of its own accord; ``grad_clip``."""
    if "grad_clip" not in call.extra:
        draft.seen["optimizer that does not clip"] = call.place
    else:
        _take_grad_clip(call.extra["grad_clip"], call, draft)
    if "multi_precision" in call.extra:
        try:
            if call.extra["multi_precision"].evaluate():
                draft.seen["own masters"] = call.place
        except NotKnown as error:
            draft.seen["perhaps masters"] = error.place


def _take_grad_clip(argument: Argument, call: Call, draft: Draft) -> None:
    try:
        clip = argument.evaluate()
    except NotKnown as error:
        draft.seen["clipping optimizer"] = call.place
        if not steps.clips(draft):
            steps.doubt_clip(draft, error.place)
        return
    if clip is not None:
        draft.seen["clipping optimizer"] = call.place
    if isinstance(clip, Object) and clip.qualified in CLIPS:
        clip_object(clip.call, draft)


def grad_scaler(call: Call, draft: Draft, usual: Mapping[str, Any] | None = None) -> None:
    """``paddle.amp.GradScaler``, by Paddle's names or torch's; ``usual``: fluid's other defaults."""
    _tell_of_odd_switch(call, draft, "GradScaler(init_loss_scaling=1024)")
    keys: Mapping[str, str] = {**NUMBERS, **{key: key for key in TORCH_NUMBERS}}
    switch = "enabled" if "enabled" in call.arguments else "enable"
    steps.scaler(call, draft, "paddle", {}, switch)
    if draft.settings.get("scaler.enabled", True):
        for key, value in (usual or {}).items():
            draft.set(key, value)
        if call.unpacked is not None:
            keys = NUMBERS
        steps.take_numbers(call, draft, keys)


def amp_scaler(call: Call, draft: Draft) -> None:
    """``AmpScaler``, fluid's: other defaults."""
    grad_scaler(call, draft, {"scaler.init_scale": 2.0**15, "scaler.growth_interval": 1000})


def setter(argument: str) -> Handler:
    """``scaler.set_...(value)``, before training."""

    def set_number(call: Call, draft: Draft) -> None:
        if draft.settings.get("scaler.enabled", True):
            steps.take_numbers(call, draft, {"value": NUMBERS[argument]})

    return set_number


# -- static graphs


def static_decorate(call: Call, draft: Draft) -> None:
    """``paddle.static.amp.decorate``: two functions of one name, told apart by their arguments."""
    passed = {*call.arguments, *(key for key in call.extra if not key.isdecimal())}
    fits = [each for each in (STATIC_OLD, STATIC) if passed <= set(each)]
    old = fits == [STATIC_OLD]
    if len(fits) != 1 and "2" in call.extra:
        by_position = replace(call, arguments=call.extra)
        old = isinstance(by_position.known("2", None), float)
    signature = STATIC_OLD if old else STATIC
    named = {
        signature[int(key)] if key.isdecimal() else key: argument
        for key, argument in call.extra.items()
        if not key.isdecimal() or int(key) < len(signature)
    }
    call = replace(call, arguments={**call.arguments, **named}, extra={})
    if old:
        fluid_decorate(call, draft)
        return
    take_level(call, draft)
    draft.take("policy.dtype", call, "dtype", "float16", steps.dtype_name)
    if draft.settings.get("policy.level") == "O2":
        draft.take("policy.masters", call, "master_weight", None, _masters)
        draft.take_flag("decorate.master_grad", call, "master_grad", False)
    _take_amp_lists(call, draft)
    _take_static_scaling(call, draft, "paddle")
    _tell_of_guard(call, draft, "use_amp_guard", usual=False)


def _masters(master_weight: Any) -> str:
    return "none" if master_weight is False else "float32"


def fluid_decorate(call: Call, draft: Draft) -> None:
    """The static ``decorate`` of fluid, by ``use_pure_fp16`` and ``use_bf16``."""
    draft.take_flag("policy.level", call, "use_pure_fp16", False, "O2", "O1")
    draft.take_flag("policy.dtype", call, "use_bf16", False, "bfloat16", "float16")
    _take_amp_lists(call, draft)
    pure = draft.settings.get("policy.level") == "O2"
    if pure:
        draft.note(
            call.place,
            "use_pure_fp16 keeps float32 masters where the optimizer was made with "
            "multi_precision=True; the recipe keeps them.",
            "masters = 'none' in the recipe, if it was not",
        )
    _take_static_scaling(call, draft, "paddle_fleet")
    _tell_of_guard(call, draft, "use_fp16_guard", usual=pure)


def bf16_decorate(call: Call, draft: Draft) -> None:
    """``paddle.static.amp.bf16.decorate_bf16``: no scaling."""
    draft.take_flag("policy.level", call, "use_pure_bf16", False, "O2", "O1")
    draft.set("policy.dtype", "bfloat16")
    _take_amp_lists(call, draft)
    steps.never(draft)
    _tell_of_guard(call, draft, "use_bf16_guard", usual=draft.settings.get("policy.level") == "O2")


def _take_static_scaling(call: Call, draft: Draft, preset: str) -> None:
    steps.scaler(call, draft, preset, NUMBERS)
    draft.seen.pop("scaler")
    if draft.settings.get("policy.dtype") == "bfloat16":
        steps.never(draft)


@doubting("policy.allow", "policy.deny")
def _take_amp_lists(call: Call, draft: Draft) -> None:
    """``amp_lists``: a ``CustomOpLists`` made in the same program."""
    draft.set("policy.lists", "paddle")
    for key in ("policy.allow", "policy.deny"):
        draft.set(key, None)
    lists = call.value("amp_lists", None)
    if isinstance(lists, Object):
        renamed = {"custom_bf16_list": LISTS[0], "custom_fp32_list": LISTS[1]}
        arguments = {renamed.get(key, key): each for key, each in lists.call.arguments.items()}
        take_lists(replace(lists.call, arguments=arguments), draft, static=True)
        for argument in ("custom_black_varnames", "custom_fp32_varnames"):
            if lists.call.given(argument):
                message = f"{argument} names single variables; a recipe's rules are of ops."
                draft.lost(lists.call.place_of(argument), message, "deny = [...] in the recipe")


def _tell_of_guard(call: Call, draft: Draft, argument: str, *, usual: bool) -> None:
    guarded = call.known(argument, None, False)
    if usual if guarded is None else guarded:
        message = "Only what is built under fp16_guard runs in low precision; a recipe is of the whole step."
        draft.lost(call.place_of(argument), message, "enter autocast around that part alone")


# -- hapi and fleet


@doubting("policy.level")
def prepare(call: Call, draft: Draft) -> None:
    """``paddle.Model.prepare(amp_configs=...)``: a region, ``decorate`` and a scaler in one."""
    if "amp_configs" not in call.arguments:
        if call.unpacked is not None:
            draft.doubt(call.unpacked, "policy.level")
        return
    configs = call.parts("amp_configs")
    draft.set("policy.lists", "paddle")
    if configs is None:
        off = call.named(call.name).passing(level="O0")
        on = call.value("amp_configs", None)
        configs = call.named(call.name, level="amp_configs") if on else off
    take_level(configs, draft)
    if draft.settings.get("policy.level") == "O0":
        return
    draft.take("policy.dtype", configs, "dtype", "float16", steps.dtype_name)
    if draft.settings.get("policy.level") == "O2":
        draft.set("policy.masters", "float32")
    take_lists(configs, draft)
    steps.scaler(configs, draft, "paddle", NUMBERS)


def fit(call: Call, draft: Draft) -> None:
    """``paddle.Model.fit(..., accumulate_grad_batches=1)``, whose ``train_batch`` divides no loss."""
    draft.take("step.accumulate", call, "accumulate_grad_batches", 1, steps.micro_batches)
    if "step.accumulate" in draft.settings:
        count = draft.settings["step.accumulate"]
        message = f"The gradients of {count} micro-batches are summed here; a recipe averages them."
        draft.lost(call.place, message, f"multiply the loss by {count}")


def strategy_amp(call: Call, draft: Draft) -> None:
    """``strategy.amp = True``: fleet's scaler, and O1 unless ``amp_configs`` says otherwise."""
    if not call.flag("value", True):
        draft.set("policy.level", "O0")
        return
    if not draft.says("policy.level"):
        draft.set("policy.level", "O1")
        draft.set("policy.dtype", "float16")
    draft.set("policy.lists", "paddle")
    if not draft.says("scaler."):
        steps.like(draft, "paddle_fleet")


def strategy_amp_configs(call: Call, draft: Draft) -> None:
    """``strategy.amp_configs = {...}``."""
    configs = call.parts("value")
    if configs is None:
        draft.doubt(call.place_of("value"), "policy.level")
        return
    draft.take_flag("policy.level", configs, "use_pure_fp16", False, "O2", "O1")
    draft.take_flag("policy.dtype", configs, "use_bf16", False, "bfloat16", "float16")
    take_lists(configs, draft, static=True)
    _take_static_scaling(configs, draft, "paddle_fleet")
    if draft.settings.get("policy.level") == "O2":  # elsewhere it has no effect
        _tell_of_guard(configs, draft, "use_fp16_guard", usual=True)


def gradient_merge(call: Call, draft: Draft) -> None:
    """``strategy.gradient_merge_configs = {"k_steps": 4, "avg": True}``."""
    configs = call.parts("value")
    if configs is None or "k_steps" not in configs.arguments:
        return
    draft.take("step.accumulate", configs, "k_steps", 1, steps.whole)
    if not configs.value("avg", True):
        message = "The gradients of the micro-batches are summed here; a recipe averages them."
        draft.lost(call.place, message, "scale the loss, or the learning rate, by k_steps")


# -- clipping


def clip_object(call: Call, draft: Draft) -> None:
    """``paddle.nn.ClipGradByGlobalNorm`` and its like, which optimizers apply to unscaled gradients."""
    if CLIPS[call.name] == "clip_value":
        steps.clip_within(call, draft, "min", "max", symmetric=True)
    else:
        steps.clip(draft, CLIPS[call.name], call, "clip_norm")
    draft.seen["clip object"] = call.place


CLIPS: Mapping[str, str] = {
    "paddle.nn.ClipGradByGlobalNorm": "clip_norm",
    "paddle.nn.ClipGradByNorm": "clip_each_norm",
    "paddle.nn.ClipGradByValue": "clip_value",
}


def parameter(call: Call, draft: Draft) -> None:
    """``paddle.ParamAttr(need_clip=False)``."""
    if not call.known("need_clip", True, True):
        message = "need_clip=False leaves this parameter out of clipping; a recipe's clips all."
        draft.lost(call.place, message, "clip in the loop")


# -- PaddleNLP

BLACK, WHITE_AT_O2 = ("reduce_sum", "c_softmax_with_cross_entropy"), ("lookup_table_v2",)
"""What the Trainer's regions list besides the user's own."""


def _besides(call: Call, name: str, own: tuple[str, ...]) -> list[Any]:
    """The Trainer's own entries of a list, and the user's."""
    return [*own, *(call.value(name, None) or ())]


@doubting("policy.level", "policy.dtype")
def training_arguments(call: Call, draft: Draft) -> None:
    """``TrainingArguments(fp16=False, bf16=False, fp16_opt_level="O1", scale_loss=2**15, ...)``."""
    draft.take("step.accumulate", call, "gradient_accumulation_steps", 1, steps.micro_batches)
    steps.clip(draft, "clip_norm", call, "max_grad_norm", steps.limit, 1.0)
    draft.seen["clip of the trainer"] = call.place_of("max_grad_norm")
    fp16 = call.flag("fp16", False)
    bf16 = not fp16 and call.flag("bf16", False)
    level = str(call.value("fp16_opt_level", "O1")).upper()
    if level == "O0" or not (fp16 or bf16):
        draft.set("policy.level", "O0")
        return
    dtype = "float16" if fp16 else "bfloat16"
    if fp16:
        made = call.named("paddle.amp.GradScaler", init_loss_scaling="scale_loss")
        grad_scaler(made.passing(init_loss_scaling=2.0**15), draft)
    else:
        steps.never(draft)
    if level == "O2":
        decorated = call.named("paddle.amp.decorate", master_grad="amp_master_grad")
        decorate(decorated.passing(level=level, dtype=dtype, optimizers=True), draft)
    own: dict[str, tuple[str, ...]] = {"custom_black_list": BLACK}
    own["custom_white_list"] = WHITE_AT_O2 if level == "O2" else ()
    lists = {
        key: Argument(call.place_of(f"amp_{key}"), partial(_besides, call, f"amp_{key}", usual))
        for key, usual in own.items()
    }
    region = replace(call, name="paddle.amp.auto_cast", arguments=lists, extra={})
    auto_cast(region.passing(level=level, dtype=dtype), draft)


# -- at last


def finish(draft: Draft) -> None:
    """What follows from all calls together."""
    settings, seen = draft.settings, draft.seen
    if "scaler" in seen and not draft.says("policy.level"):
        draft.unknown["policy.level"] = seen["scaler"]  # regions open in another file
    idle = "optimizer that does not clip" in seen and "clipping optimizer" not in seen
    if "clip object" in seen and idle and steps.clips(draft):
        message = "No optimizer of this file takes it as grad_clip; whether it clips is not known."
        hint = "paddle.optimizer.SGD(..., grad_clip=clip), if it is meant to"
        draft.find("unknown", seen["clip object"], message, hint)
        for name in steps.clips(draft):
            steps.doubt_clip(draft, seen["clip object"], name)
    if idle and "clip of the trainer" in seen and steps.clips(draft):
        draft.forget("step.clip")
        draft.ignored(
            seen["optimizer that does not clip"],
            "The Trainer clips by the optimizer that it makes itself; this one has no grad_clip, so "
            "max_grad_norm has no effect.",
            "grad_clip=paddle.nn.ClipGradByGlobalNorm(args.max_grad_norm), if it is meant to",
        )
    steps.tell_of_order(draft)
    if settings.get("policy.level") == "O0":
        for section in ("policy.", "decorate."):
            draft.forget(section)
        draft.set("policy.level", "O0")
        return
    draft.set("policy.lists", "paddle")
    _settle_masters(draft)
    _tell_of_decoration(draft)
    if settings.get("policy.dtype") != "bfloat16":
        steps.settle(draft, "paddle")
    elif settings.get("scaler.like") and settings.get("scaler.dynamic", True):
        steps.never(draft, "dynamic scaling switches itself off with bfloat16")


def _settle_masters(draft: Draft) -> None:
    """Where ``decorate`` was passed models alone, the optimizers say whether there are masters."""
    seen = draft.seen
    if "decorated alone" not in seen or seen.keys() & {"decorated with optimizers", "own masters"}:
        return
    if draft.settings.get("policy.level") == "O1":  # of parameters in float32, which is told
        return
    if "perhaps masters" in seen:
        draft.unknown["policy.masters"] = seen["perhaps masters"]
        return
    draft.set("policy.masters", "none")
    draft.comments["policy.masters"] = "decorate was passed no optimizers"
    draft.note(
        seen["decorated alone"],
        "decorate() was passed no optimizers: Paddle makes float32 masters for those that it is "
        "passed, and for optimizers with multi_precision=True. Here updates go to the low "
        "parameters.",
        "paddle.amp.decorate(models=model, optimizers=optimizer, level='O2')",
    )


def _tell_of_decoration(draft: Draft) -> None:
    """Regions at O2 over a model that nothing has decorated, at O1 over one that was, or none at all."""
    region, decorated = draft.seen.get("region"), draft.seen.get("decorated")
    level = draft.settings.get("policy.level")
    if region is not None and decorated is None and level == "O2":
        draft.lost(
            region,
            "Nothing in this file decorates the model: unless another does, its parameters stay "
            "in float32 under regions of O2. The recipe's O2 casts them.",
            "level = 'O1' in the recipe, if nothing calls paddle.amp.decorate(level='O2')",
        )
    if region is not None and decorated is not None and level == "O1":
        draft.lost(
            decorated,
            f"The model is decorated at O2, the region of line {region.line} is of O1: low "
            "parameters under the lists of O1. The recipe's O1 leaves parameters in float32.",
            "paddle.amp.auto_cast(level='O2')",
        )
    if region is None and decorated is not None:
        no_region = "The model is decorated here, and no region is in the files that were read"
        message = f"{no_region}: its op lists are unknown."
        hint = "ampbridge port the file that enters the region; policy.allow, policy.deny"
        draft.find("unknown", decorated, message, hint)


_OPTIMIZERS = [f"paddle.optimizer.{name}" for name in (
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Lamb", "Momentum", "NAdam",
    "RAdam", "RMSProp", "Rprop", "SGD", "LBFGS",
)]  # fmt: skip
_STRATEGY = "paddle.distributed.fleet.DistributedStrategy"
_LISTS = "paddle.static.amp.CustomOpLists"
_BF16_LISTS = "paddle.static.amp.bf16.AutoMixedPrecisionListsBF16"
_BF16_DECORATE = "paddle.static.amp.bf16.decorate_bf16"
_FLUID = "paddle.fluid.contrib.mixed_precision"
_ARGUMENTS = "paddlenlp.trainer.TrainingArguments"

# fmt: off
_STATIC: Mapping[str, tuple[str, Handler]] = {
    "paddle.static.amp.decorate": ("optimizer amp_lists", static_decorate),
    f"{_FLUID}.decorate": (" ".join(STATIC_OLD), fluid_decorate),
    _BF16_DECORATE: ("optimizer amp_lists use_pure_bf16 use_bf16_guard", bf16_decorate),
}
_OF_SCALERS: Mapping[str, tuple[str, Handler | None]] = {
    **{f"set_{argument}": ("value", setter(argument)) for argument in NUMBERS},
    **{f"get_{argument}": ("", None) for argument in NUMBERS},
    "unscale_": ("optimizer", steps.unscales),
    "scale": ("var", None),
    "minimize": ("optimizer scaled_loss", None),
    "step": ("optimizer", None),
    **dict.fromkeys(("update", "is_enable", "is_use_dynamic_loss_scaling"), ("", None)),
}

CALLS: Mapping[str, tuple[str, Handler | None]] = {
    "paddle.amp.auto_cast": (
        "enable custom_white_list custom_black_list level dtype use_promote", auto_cast,
    ),
    "paddle.amp.autocast": ("device_type dtype enabled cache_enabled", autocast),
    "paddle.cuda.amp.autocast": ("enabled dtype cache_enabled", autocast),
    "paddle.amp.decorate": (
        "models optimizers level dtype master_weight save_dtype master_grad excluded_layers", decorate,
    ),
    **dict.fromkeys(_OPTIMIZERS, ("", optimizer)),
    "paddle.amp.GradScaler": (SCALER, grad_scaler),
    "paddle.amp.AmpScaler": (SCALER, amp_scaler),
    **{
        f"paddle.amp.{each}.{name}": call
        for each in ("GradScaler", "AmpScaler") for name, call in _OF_SCALERS.items()
    },
    "paddle.distributed.fleet.distributed_scaler": ("scaler", None),
    "paddle.distributed.sharding.group_sharded_parallel": ("model optimizer level scaler", None),
    **_STATIC,
    **{f"{name}.minimize": ("loss", None) for name in _STATIC},
    _LISTS: ("custom_white_list custom_black_list custom_black_varnames dtype", None),
    _BF16_LISTS: ("custom_bf16_list custom_fp32_list custom_fp32_varnames", None),
    "paddle.Model": ("network inputs labels", None),
    "paddle.Model.prepare": ("optimizer loss metrics amp_configs", prepare),
    "paddle.Model.fit": (
        "train_data eval_data batch_size epochs eval_freq log_freq save_dir save_freq verbose "
        "drop_last shuffle num_workers callbacks accumulate_grad_batches num_iters", fit,
    ),
    _STRATEGY: ("", None),
    f"{_STRATEGY}.amp": ("value", strategy_amp),
    f"{_STRATEGY}.amp_configs": ("value", strategy_amp_configs),
    f"{_STRATEGY}.gradient_merge_configs": ("value", gradient_merge),
    "paddle.nn.ClipGradByGlobalNorm": ("clip_norm group_name auto_skip_clip", clip_object),
    "paddle.nn.ClipGradByNorm": ("clip_norm", clip_object),
    "paddle.nn.ClipGradByValue": ("max min", clip_object),
    "paddle.nn.utils.clip_grad_norm_": (
        "parameters max_norm norm_type error_if_nonfinite", steps.clip_by_norm,
    ),
    "paddle.nn.utils.clip_grad_value_": ("parameters clip_value", steps.clip_by_value),
    "paddle.ParamAttr": (
        "name initializer learning_rate regularizer trainable do_model_average need_clip", parameter,
    ),
    _ARGUMENTS: (
        "output_dir fp16 bf16 fp16_opt_level amp_master_grad amp_custom_black_list amp_custom_white_list "
        "scale_loss gradient_accumulation_steps max_grad_norm", training_arguments,
    ),
}
# fmt: on

_OLDER = {
    "paddle.amp.auto_cast": ("paddle.amp.amp_guard", "paddle.fluid.dygraph.amp_guard"),
    "paddle.amp.autocast": ("paddle.autocast",),
    "paddle.amp.GradScaler": ("paddle.cuda.amp.GradScaler", "paddle.GradScaler"),
    "paddle.amp.AmpScaler": ("paddle.fluid.dygraph.AmpScaler",),
    "paddle.amp.decorate": ("paddle.amp.amp_decorate", "paddle.fluid.dygraph.amp_decorate"),
    f"{_FLUID}.decorate": ("paddle.fluid.contrib.decorate",),
    _BF16_DECORATE: (f"{_FLUID}.bf16.decorate_bf16",),
    _LISTS: (
        "paddle.static.amp.AutoMixedPrecisionLists",
        f"{_FLUID}.AutoMixedPrecisionLists",
        f"{_FLUID}.CustomOpLists",
    ),
    _BF16_LISTS: (f"{_FLUID}.bf16.AutoMixedPrecisionListsBF16",),
    _STRATEGY: ("paddle.fleet.DistributedStrategy",),
    _ARGUMENTS: (
        "paddlenlp.trainer.AutoTrainingArguments",
        "paddleformers.trainer.TrainingArguments",
        "paddlenlp.trl.SFTConfig",
        "paddlenlp.trl.DPOConfig",
    ),
    "paddle.nn.ClipGradByGlobalNorm": ("paddle.fluid.clip.GradientClipByGlobalNorm",),
    "paddle.nn.ClipGradByNorm": ("paddle.fluid.clip.GradientClipByNorm",),
    "paddle.nn.ClipGradByValue": ("paddle.fluid.clip.GradientClipByValue",),
}

DIALECT = Dialect(
    "paddle",
    CALLS,
    {other: name for name, others in _OLDER.items() for other in others},
    finish,
    frozenset({*_OPTIMIZERS, "paddle.static.amp.decorate", _ARGUMENTS}),
    {"paddle.base": "paddle.fluid"},
)
