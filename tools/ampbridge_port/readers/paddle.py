"""Paddle's mixed precision: ``paddle.amp``, ``paddle.static.amp``, hapi, fleet, and fluid before them.

Signatures, defaults and rules are those of Paddle 3.3: amp/auto_cast.py, amp/grad_scaler.py,
static/amp/decorator.py, hapi/model.py, and the defaults of DistributedStrategy in
framework/distributed_strategy.proto. Those of fluid's own functions are of 1.8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ampbridge.policies import paddle_names as names
from ampbridge_port.dialect import Argument, Call, Dialect, Draft, Handler, Name, NotKnown, Object
from ampbridge_port.readers import clipping, scaling

NUMBERS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "init_loss_scaling": ("scaler.init_scale", scaling.number),
    "incr_ratio": ("scaler.growth_factor", scaling.number),
    "decr_ratio": ("scaler.backoff_factor", scaling.number),
    "incr_every_n_steps": ("scaler.growth_interval", scaling.whole),
    "decr_every_n_nan_or_inf": ("scaler.backoff_interval", scaling.whole),
}
"""A scaler's arguments -> the recipe's keys."""

FLUID_SCALER = {"scaler.init_scale": 2.0**15, "scaler.growth_interval": 1000}
"""What ``AmpScaler`` has that ``GradScaler`` has not."""

REGION = ("enable", "custom_white_list", "custom_black_list", "level", "dtype", "use_promote")
DECORATE = (
    "models", "optimizers", "level", "dtype", "master_weight", "save_dtype", "master_grad",
    "excluded_layers",
)  # fmt: skip
SCALER = (
    "enable", "init_loss_scaling", "incr_ratio", "decr_ratio", "incr_every_n_steps",
    "decr_every_n_nan_or_inf", "use_dynamic_loss_scaling",
)  # fmt: skip
STATIC_OLD = (
    "optimizer", "amp_lists", "init_loss_scaling", "incr_every_n_steps", "decr_every_n_nan_or_inf",
    "incr_ratio", "decr_ratio", "use_dynamic_loss_scaling", "use_pure_fp16", "use_fp16_guard",
    "use_bf16", "use_promote",
)  # fmt: skip
STATIC = (
    "optimizer", "amp_lists", "level", "dtype", "master_weight", "master_grad", "init_loss_scaling",
    "incr_every_n_steps", "decr_every_n_nan_or_inf", "incr_ratio", "decr_ratio",
    "use_dynamic_loss_scaling", "use_amp_guard", "use_promote",
)  # fmt: skip


# -- dtypes, levels and lists


def dtype_name(value: Any) -> Any:
    """``paddle.float16`` as ``"float16"``; what is no dtype stays, for the recipe to refuse it."""
    text = value.last if isinstance(value, Name) else value
    text = text.lower() if isinstance(text, str) else text
    return (
        {"fp16": "float16", "bf16": "bfloat16"}.get(text, text) if isinstance(text, str) else text
    )


def take_level(call: Call, draft: Draft) -> None:
    """``level``, in any case; OD as what comes nearest."""
    draft.take("policy.level", call, "level", "O1", _upper)
    if draft.settings.get("policy.level") == "OD":
        draft.set("policy.level", "O1")
        draft.find(
            "lost",
            call.place_of("level"),
            "OD runs the white list alone in low precision and all other ops in float32; a recipe has no "
            "such rule. O1 stands in its place: ops in neither list follow their inputs.",
            "deny the ops that must stay in float32, deny = [...] in the recipe",
        )


def _upper(level: Any) -> Any:
    return level.upper() if isinstance(level, str) else level


def take_list(call: Call, draft: Draft, argument: str, key: str, *, static: bool = False) -> None:
    """A custom list as canonical ops; says which entries Paddle takes no notice of."""
    draft.set(key, None)
    if argument not in call.arguments and call.unpacked is None:
        return
    place = call.place_of(argument)
    kind: names.PaddleList = "custom_white_list" if key == "policy.allow" else "custom_black_list"

    def canonical(entries: Any) -> Any:
        if not entries or isinstance(entries, str):
            return None
        reading = names.paddle_list(entries, kind, static=static)
        for found, remarks in (
            ("ignored", reading.ignored),
            ("lost", reading.lost),
            ("note", reading.notes),
        ):
            for remark in remarks.values():
                draft.find(found, place, remark.message, remark.hint)  # type: ignore[arg-type]
        return list(reading.canonical) or None

    draft.take(key, call, argument, None, canonical)
    draft.comments.pop(key, None)
    if key in draft.settings:
        draft.comments[key] = f"{argument}: {place.text}"


def take_lists(call: Call, draft: Draft, *, static: bool = False) -> None:
    """Both custom lists."""
    take_list(call, draft, "custom_white_list", "policy.allow", static=static)
    take_list(call, draft, "custom_black_list", "policy.deny", static=static)
    allow, deny = (set(draft.settings.get(f"policy.{key}", ())) for key in ("allow", "deny"))
    for op in sorted(allow & deny):  # Paddle moves to the white list first, then to the black one
        draft.settings["policy.allow"].remove(op)


def enabled(call: Call, draft: Draft, argument: str = "enable") -> bool | None:
    """Whether a region is on; says so in the draft where it is not, or where that is not known (None)."""
    try:
        on = call.flag(argument, True)
    except NotKnown as error:
        draft.set("policy.level", None)
        draft.unknown["policy.level"] = error.place
        return None
    if on:
        return True
    if "decorated" in draft.seen:  # its parameters are low all the same
        message = (
            "A region without casts in a training at O2: a recipe has one policy for all of a step."
        )
        draft.find(
            "lost", call.place, message, "name its ops under deny, or its layers under keep."
        )
    else:
        draft.set("policy.level", "O0")
    return False


def _tell_of_odd_switch(call: Call, draft: Draft, hint: str) -> None:
    """``auto_cast("bfloat16")``: the first parameter is a switch, which a word or a number turns on."""
    try:
        switch = call.value("enable", True)
    except NotKnown:
        return
    if isinstance(switch, (str, float)) or (isinstance(switch, int) and switch not in (0, 1)):
        name = call.name.rpartition(".")[2]
        message = f"{name}({switch!r}) sets enable, its first parameter, and says nothing else."
        draft.find("note", call.place_of("enable"), message, hint)


# -- dynamic graphs


def auto_cast(call: Call, draft: Draft) -> None:
    """``paddle.amp.auto_cast``: the region."""
    on = enabled(call, draft)
    _tell_of_odd_switch(call, draft, 'auto_cast(dtype="bfloat16")')
    draft.set("policy.lists", "paddle")
    if on is False:
        return
    if on:
        take_level(call, draft)
    draft.take("policy.dtype", call, "dtype", "float16", dtype_name)
    draft.seen["region"] = call.place
    take_lists(call, draft)
    take_promotion(call, draft)


def autocast(call: Call, draft: Draft) -> None:
    """``paddle.amp.autocast``: torch's spelling; always O1, whatever the device."""
    on = enabled(call, draft, "enabled")
    draft.set("policy.lists", "paddle")
    if on:
        draft.set("policy.level", "O1")
    if on is not False:
        draft.take("policy.dtype", call, "dtype", "float16", dtype_name)


def take_promotion(call: Call, draft: Draft) -> None:
    """``use_promote=False``."""
    try:
        promotes = call.flag("use_promote", True)
    except NotKnown:
        return
    if promotes:
        return
    place = call.place_of("use_promote")
    if draft.settings.get("policy.level") == "O2":
        draft.find(
            "lost",
            place,
            "use_promote=False casts float32 inputs of ops outside the black list down; a recipe's "
            "ops outside both lists follow their inputs.",
            "list the ops that must run in low precision, allow = [...] in the recipe",
        )
    else:
        draft.find("ignored", place, "use_promote=False has no effect but at O2.")


def decorate(call: Call, draft: Draft) -> None:
    """``paddle.amp.decorate``: parameters in low precision at O2; nothing at O1."""
    try:
        level = call.value("level", "O1")
    except NotKnown as error:
        if "policy.level" not in draft.settings:
            draft.unknown.setdefault("policy.level", error.place)
        level = "O2"
    if level != "O2":
        for argument in ("master_weight", "save_dtype", "master_grad", "excluded_layers"):
            if argument in call.arguments and _given(call, argument):
                message = f"decorate(level={level!r}) changes nothing; {argument} has no effect."
                draft.find("ignored", call.place_of(argument), message, "decorate(level='O2')")
        return
    draft.seen["decorated"] = call.place
    if "policy.lists" not in draft.settings:  # a region says it, wherever it stands
        if "policy.level" not in draft.unknown:
            draft.set("policy.level", "O2")
        draft.take("policy.dtype", call, "dtype", "float16", dtype_name)
    take_masters(call, draft)
    take_save_dtype(call, draft)
    draft.take_flag("decorate.master_grad", call, "master_grad", False)
    take_kept(call, draft)


def _given(call: Call, argument: str) -> bool:
    try:
        return call.value(argument, None) not in (None, False)
    except NotKnown:
        return True


def take_masters(call: Call, draft: Draft) -> None:
    """``decorate`` gives masters to the optimizers that it is passed; without one there are none."""
    if _given(call, "optimizers"):
        draft.take(
            "policy.master_weights", call, "master_weight", None, lambda value: value is not False
        )
        draft.seen["decorated with optimizers"] = call.place
    elif "decorated with optimizers" not in draft.seen:
        draft.seen["decorated alone"] = call.place


def optimizer(call: Call, draft: Draft) -> None:
    """``multi_precision=True``: an optimizer that has masters of its own accord; ``grad_clip``."""
    take_grad_clip(call, draft)
    if "multi_precision" not in call.extra:
        return
    argument = call.extra["multi_precision"]
    try:
        has_masters = bool(argument.evaluate())
    except NotKnown as error:
        draft.seen["perhaps masters"] = error.place
        return
    if has_masters:
        draft.seen["own masters"] = argument.place


def _settle_masters(draft: Draft) -> None:
    """Where ``decorate`` was passed models alone, the optimizers say whether there are masters."""
    seen = draft.seen.keys()
    if "decorated alone" not in seen or seen & {"decorated with optimizers", "own masters"}:
        return
    if draft.settings.get("policy.level") == "O1":  # of parameters in float32, which is told
        return
    if "perhaps masters" in draft.seen:
        draft.unknown["policy.master_weights"] = draft.seen["perhaps masters"]
        return
    draft.set("policy.master_weights", False)
    draft.comments["policy.master_weights"] = "decorate was passed no optimizers"
    draft.find(
        "note",
        draft.seen["decorated alone"],
        "decorate() was passed no optimizers: Paddle makes float32 masters for those that it is passed, "
        "and for optimizers with multi_precision=True. Here updates go to the low parameters.",
        "paddle.amp.decorate(models=model, optimizers=optimizer, level='O2')",
    )


def take_save_dtype(call: Call, draft: Draft) -> None:
    """``save_dtype``; a recipe has no float64."""
    draft.take("decorate.save_dtype", call, "save_dtype", None, dtype_name)
    if draft.settings.get("decorate.save_dtype") == "float64":
        draft.set("decorate.save_dtype", "float32")
        message = "A recipe saves in float32, not float64; the values are the same."
        draft.find("note", call.place_of("save_dtype"), message)


def take_kept(call: Call, draft: Draft) -> None:
    """``excluded_layers``: classes by name, layers by where they stand in the model."""
    if "excluded_layers" not in call.arguments:
        return
    argument = call.arguments["excluded_layers"]
    parts = argument.parts()
    entries = [argument] if parts is None else list(parts.values())
    model = call.arguments["models"].place.text if "models" in call.arguments else ""
    kept: list[str] = []
    for entry in entries:
        name = _kept(entry, model)
        if name is None:
            draft.set("policy.keep", None)
            draft.unknown["policy.keep"] = entry.place
            return
        kept.extend(name)
    draft.set("policy.keep", sorted(set(kept)) or None)
    draft.comments["policy.keep"] = f"excluded_layers={argument.place.text}"


def _kept(entry: Argument, model: str) -> list[str] | None:
    try:
        value = entry.evaluate()
    except NotKnown as error:
        text = error.place.text
        inside = model and text.startswith(f"{model}.")
        name = text.removeprefix(f"{model}.")
        return [name] if inside and name.replace(".", "").isidentifier() else None
    if isinstance(value, Name) and not isinstance(value, Object):
        return [value.last]
    return [] if value is None else None


def grad_scaler(call: Call, draft: Draft) -> None:
    """``paddle.amp.GradScaler``."""
    _tell_of_odd_switch(call, draft, "GradScaler(init_loss_scaling=1024)")
    take_scaler(call, draft, {})


def amp_scaler(call: Call, draft: Draft) -> None:
    """``AmpScaler``, fluid's: other defaults."""
    take_scaler(call, draft, FLUID_SCALER)


def take_scaler(
    call: Call, draft: Draft, usual: Mapping[str, Any], like: str = "paddle", on: str = "enable"
) -> None:
    """A scaler by the rule of preset ``like``, with other defaults and its own numbers."""
    scaling.like(draft, like)
    draft.seen["scaler"] = call.place
    try:
        if not call.flag(on, True):
            scaling.never(draft)
            draft.comments["scaler.enabled"] = f"{on}={call.place_of(on).text}"
            return
    except NotKnown as error:
        draft.unknown["scaler.enabled"] = error.place
    for key, value in usual.items():
        draft.set(key, value)
    take_numbers(call, draft)


def take_numbers(call: Call, draft: Draft) -> None:
    """What a scaler was told; the rest stays as its preset has it."""
    for argument, (key, convert) in NUMBERS.items():
        if argument in call.arguments or call.unpacked is not None:
            draft.take(key, call, argument, None, convert)
    try:
        if not call.flag("use_dynamic_loss_scaling", True):
            draft.set("scaler.dynamic", False)
    except NotKnown as error:
        draft.unknown["scaler.dynamic"] = error.place


def setter(argument: str) -> Handler:
    """``scaler.set_...(value)``, before training."""
    key, convert = NUMBERS[argument]

    def set_number(call: Call, draft: Draft) -> None:
        if draft.settings.get("scaler.enabled", True):
            draft.take(key, call, f"new_{argument}", None, convert)

    return set_number


# -- static graphs


def static_decorate(call: Call, draft: Draft) -> None:
    """``paddle.static.amp.decorate``: two functions of one name, told apart by their arguments."""
    passed = {*call.arguments, *(key for key in call.extra if not key.isdecimal())}
    third = call.extra.get("2")
    fits = [names for names in (STATIC_OLD, STATIC) if passed <= set(names)]
    old = fits == [STATIC_OLD]
    if len(fits) != 1 and third is not None:
        try:
            old = isinstance(third.evaluate(), float)
        except NotKnown:
            old = False
    if old:
        fluid_decorate(_bound(call, STATIC_OLD), draft)
    else:
        common_decorate(_bound(call, STATIC), draft)


def _bound(call: Call, signature: tuple[str, ...]) -> Call:
    """``call`` with its further arguments named as ``signature`` has them."""
    named = {
        signature[int(key)] if key.isdecimal() else key: argument
        for key, argument in call.extra.items()
        if not key.isdecimal() or int(key) < len(signature)
    }
    return replace(call, arguments={**call.arguments, **named}, extra={})


def common_decorate(call: Call, draft: Draft) -> None:
    """The static ``decorate`` of Paddle 2.5 and later, by ``level`` and ``dtype``."""
    take_level(call, draft)
    draft.take("policy.dtype", call, "dtype", "float16", dtype_name)
    if draft.settings.get("policy.level") == "O2":
        draft.take(
            "policy.master_weights", call, "master_weight", None, lambda value: value is not False
        )
        draft.take_flag("decorate.master_grad", call, "master_grad", False)
    take_amp_lists(call, draft)
    scaling.like(draft, "paddle")
    take_static_scaling(call, draft)
    _tell_of_guard(call, draft, "use_amp_guard", usual=False)


def fluid_decorate(call: Call, draft: Draft) -> None:
    """The static ``decorate`` of fluid, by ``use_pure_fp16`` and ``use_bf16``."""
    draft.take_flag("policy.level", call, "use_pure_fp16", False, "O2", "O1")
    draft.take_flag("policy.dtype", call, "use_bf16", False, "bfloat16", "float16")
    take_amp_lists(call, draft)
    pure = draft.settings.get("policy.level") == "O2"
    if pure:
        draft.find(
            "note",
            call.place,
            "use_pure_fp16 keeps float32 masters where the optimizer was made with "
            "multi_precision=True; the recipe keeps them.",
            "master_weights = false in the recipe, if it was not",
        )
    scaling.like(draft, "paddle_fleet")
    take_static_scaling(call, draft)
    _tell_of_guard(call, draft, "use_fp16_guard", usual=pure)


def bf16_decorate(call: Call, draft: Draft) -> None:
    """``paddle.static.amp.bf16.decorate_bf16``: no scaling."""
    draft.take_flag("policy.level", call, "use_pure_bf16", False, "O2", "O1")
    draft.set("policy.dtype", "bfloat16")
    take_amp_lists(call, draft)
    scaling.never(draft)
    pure = draft.settings.get("policy.level") == "O2"
    _tell_of_guard(call, draft, "use_bf16_guard", usual=pure)


def take_static_scaling(call: Call, draft: Draft) -> None:
    """The numbers of a static ``decorate``; without dynamic scaling, its first scale for ever."""
    take_numbers(call, draft)
    if draft.settings.get("policy.dtype") == "bfloat16":
        draft.settings.pop("scaler.dynamic", None)
        scaling.never(draft)


def take_amp_lists(call: Call, draft: Draft) -> None:
    """``amp_lists``: a ``CustomOpLists`` made in the same file."""
    draft.set("policy.lists", "paddle")
    for key in ("policy.allow", "policy.deny"):
        draft.set(key, None)
    try:
        lists = call.value("amp_lists", None)
    except NotKnown as error:
        draft.unknown.update(dict.fromkeys(("policy.allow", "policy.deny"), error.place))
        return
    if not isinstance(lists, Object):
        return
    lists = lists.call
    renamed = {"custom_bf16_list": "custom_white_list", "custom_fp32_list": "custom_black_list"}
    arguments = {renamed.get(key, key): each for key, each in lists.arguments.items()}
    lists = replace(lists, arguments=arguments)
    take_lists(lists, draft, static=True)
    for argument in ("custom_black_varnames", "custom_fp32_varnames"):
        if argument in lists.arguments and _given(lists, argument):
            message = f"{argument} names single variables; a recipe's rules are of ops."
            draft.find("lost", lists.place_of(argument), message, "deny = [...] in the recipe")


def _tell_of_guard(call: Call, draft: Draft, argument: str, *, usual: bool) -> None:
    try:
        guarded = call.value(argument, None)
    except NotKnown:
        return
    if usual if guarded is None else guarded:
        draft.find(
            "lost",
            call.place_of(argument),
            "Only what is built under fp16_guard runs in low precision; a recipe is of the whole step.",
            "enter autocast around that part alone",
        )


# -- hapi


def prepare(call: Call, draft: Draft) -> None:
    """``paddle.Model.prepare(amp_configs=...)``: a region, ``decorate`` and a scaler in one."""
    if "amp_configs" not in call.arguments:
        if call.unpacked is not None:
            draft.unknown["policy.level"] = call.unpacked
        return
    argument = call.arguments["amp_configs"]
    parts = argument.parts()
    if parts is None:
        try:
            value = argument.evaluate()
        except NotKnown as error:
            draft.set("policy.lists", "paddle")
            draft.unknown["policy.level"] = error.place
            return
        parts = (
            {"level": argument} if value else {"level": replace(argument, evaluate=lambda: "O0")}
        )
    configs = replace(call, arguments={str(key): part for key, part in parts.items()})
    take_level(configs, draft)
    draft.set("policy.lists", "paddle")
    if draft.settings.get("policy.level") == "O0":
        return
    draft.set("policy.dtype", "float16")
    if draft.settings.get("policy.level") == "O2":
        draft.set("policy.master_weights", True)
    take_lists(configs, draft)
    scaling.like(draft, "paddle")
    take_numbers(configs, draft)


# -- fleet


def strategy_amp(call: Call, draft: Draft) -> None:
    """``strategy.amp = True``: fleet's scaler, and O1 unless ``amp_configs`` says otherwise."""
    if not call.flag("value", True):
        draft.set("policy.level", "O0")
        return
    if "policy.level" not in draft.settings and "policy.level" not in draft.unknown:
        draft.set("policy.level", "O1")
        draft.set("policy.dtype", "float16")
    draft.set("policy.lists", "paddle")
    scaling.unless_known(draft, "paddle_fleet")


def strategy_amp_configs(call: Call, draft: Draft) -> None:
    """``strategy.amp_configs = {...}``."""
    parts = call.arguments["value"].parts() if "value" in call.arguments else None
    if parts is None:
        draft.unknown["policy.level"] = call.place_of("value")
        return
    configs = replace(call, arguments={str(key): part for key, part in parts.items()})
    draft.take_flag("policy.level", configs, "use_pure_fp16", False, "O2", "O1")
    draft.take_flag("policy.dtype", configs, "use_bf16", False, "bfloat16", "float16")
    take_lists(configs, draft, static=True)
    scaling.like(draft, "paddle_fleet")
    take_static_scaling(configs, draft)
    if draft.settings.get("policy.level") == "O2":  # elsewhere it has no effect
        _tell_of_guard(configs, draft, "use_fp16_guard", usual=True)


def gradient_merge(call: Call, draft: Draft) -> None:
    """``strategy.gradient_merge_configs = {"k_steps": 4, "avg": True}``."""
    parts = call.arguments["value"].parts() if "value" in call.arguments else None
    if parts is None or "k_steps" not in parts:
        return
    configs = replace(call, arguments={str(key): part for key, part in parts.items()})
    draft.take("step.accumulate", configs, "k_steps", 1, scaling.whole)
    if not configs.value("avg", True):
        message = "The gradients of the micro-batches are summed here; a recipe averages them."
        draft.find("lost", call.place, message, "scale the loss, or the learning rate, by k_steps")


# -- clipping


def clip_object(call: Call, draft: Draft) -> None:
    """``paddle.nn.ClipGradByGlobalNorm`` and its like, which optimizers apply to unscaled gradients."""
    if call.name == CLIP_BY_VALUE:
        clipping.within(call, draft, "min", "max", symmetric=True)
    else:
        clipping.take(draft, CLIPS[call.name], call, "clip_norm")
    draft.seen["clip object"] = call.place


CLIP_BY_VALUE = "paddle.nn.ClipGradByValue"
CLIPS: Mapping[str, str] = {
    "paddle.nn.ClipGradByGlobalNorm": "clip_norm",
    "paddle.nn.ClipGradByNorm": "clip_each_norm",
    CLIP_BY_VALUE: "clip_value",
}


def unscale(call: Call, draft: Draft) -> None:
    """``scaler.unscale_(optimizer)``: functions that come after it clip unscaled gradients."""
    draft.seen[clipping.UNSCALED] = call.place


def take_grad_clip(call: Call, draft: Draft) -> None:
    """``grad_clip=`` of an optimizer: an object of this file, or one from elsewhere."""
    if "grad_clip" not in call.extra:
        draft.seen["optimizer that does not clip"] = call.place
        return
    argument = call.extra["grad_clip"]
    try:
        clip = argument.evaluate()
    except NotKnown as error:
        draft.seen["clipping optimizer"] = call.place
        if not clipping.is_known(draft):
            clipping.unknown(draft, error.place)
        return
    if clip is not None:
        draft.seen["clipping optimizer"] = call.place
    if isinstance(clip, Object) and clip.qualified in CLIPS:
        clip_object(clip.call, draft)


def _settle_clipping(draft: Draft) -> None:
    """An object that clips does nothing, unless an optimizer takes it."""
    seen = draft.seen
    idle = "optimizer that does not clip" in seen and "clipping optimizer" not in seen
    if "clip object" in seen and idle and clipping.is_known(draft):
        message = "No optimizer of this file takes it as grad_clip; whether it clips is not known."
        hint = "paddle.optimizer.SGD(..., grad_clip=clip), if it is meant to"
        draft.find("unknown", seen["clip object"], message, hint)
        clipping.doubt(draft, seen["clip object"])
    clipping.tell_of_order(draft, "scaler.unscale_(optimizer) before it, as was probably meant.")


def parameter(call: Call, draft: Draft) -> None:
    """``paddle.ParamAttr(need_clip=False)``."""
    try:
        clips = call.flag("need_clip", True)
    except NotKnown:
        return
    if not clips:
        message = "need_clip=False leaves this parameter out of clipping; a recipe's clips all."
        draft.find("lost", call.place, message, "clip in the loop")


# -- at last


def finish(draft: Draft) -> None:
    """What follows from all calls together."""
    settings = draft.settings
    if "scaler" in draft.seen and "policy.level" not in {*settings, *draft.unknown}:
        _settle_level(draft)
    level = settings.get("policy.level")
    _settle_clipping(draft)
    if level == "O0":
        for key in [key for key in settings if key.startswith(("policy.", "decorate."))]:
            draft.set(key, "O0" if key == "policy.level" else None)
        return
    draft.set("policy.lists", "paddle")
    _settle_masters(draft)
    _tell_of_decoration(draft)
    if settings.get("policy.dtype") == "bfloat16":
        if settings.get("scaler.like") and settings.get("scaler.dynamic", True):
            scaling.never(draft)
            draft.comments["scaler.enabled"] = "dynamic scaling switches itself off with bfloat16"
    else:
        scaling.settle(draft, "paddle")


def _settle_level(draft: Draft) -> None:
    """A scaler alone: regions do not open here, or are in another file."""
    if draft.seen.keys().isdisjoint(("paddle.amp.auto_cast", "paddle.amp.autocast")):
        draft.unknown["policy.level"] = draft.seen["scaler"]
    else:
        draft.set("policy.level", "O0")


def _tell_of_decoration(draft: Draft) -> None:
    """Regions at O2 over a model that nothing here has decorated, or at O1 over one that was."""
    region, decorated = draft.seen.get("region"), draft.seen.get("decorated")
    level = draft.settings.get("policy.level")
    if region is not None and decorated is None and level == "O2":
        draft.find(
            "lost",
            region,
            "Nothing in this file decorates the model: unless another does, its parameters stay in "
            "float32 under regions of O2. The recipe's O2 casts them.",
            "level = 'O1' in the recipe, if nothing calls paddle.amp.decorate(level='O2')",
        )
    if region is not None and decorated is not None and level == "O1":
        draft.find(
            "lost",
            decorated,
            f"The model is decorated at O2, the region of line {region.line} is of O1: low parameters "
            "under the lists of O1. The recipe's O1 leaves parameters in float32.",
            "paddle.amp.auto_cast(level='O2')",
        )


_SCALER_METHODS: Mapping[str, tuple[str, ...]] = {
    "scale": ("var",),
    "minimize": ("optimizer", "scaled_loss"),
    "step": ("optimizer",),
    "update": (),
    "unscale_": ("optimizer",),
    "is_enable": (),
    "is_use_dynamic_loss_scaling": (),
    **{f"get_{argument}": () for argument in NUMBERS},
    **{f"set_{argument}": (f"new_{argument}",) for argument in NUMBERS},
}
_SCALERS = ("paddle.amp.GradScaler", "paddle.amp.AmpScaler")
_OPTIMIZERS = tuple(
    f"paddle.optimizer.{name}"
    for name in (
        "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Lamb", "Momentum", "NAdam", "RAdam",
        "RMSProp", "Rprop", "SGD",
    )
)  # fmt: skip
_STRATEGY = "paddle.distributed.fleet.DistributedStrategy"
_LISTS = "paddle.static.amp.CustomOpLists"
_BF16_LISTS = "paddle.static.amp.bf16.AutoMixedPrecisionListsBF16"
_STATIC_DECORATORS = (
    "paddle.static.amp.decorate",
    "paddle.fluid.contrib.mixed_precision.decorate",
    "paddle.static.amp.bf16.decorate_bf16",
)

SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "paddle.amp.auto_cast": REGION,
    "paddle.amp.autocast": ("device_type", "dtype", "enabled", "cache_enabled"),
    "paddle.amp.decorate": DECORATE,
    **dict.fromkeys(_OPTIMIZERS, ()),
    **dict.fromkeys(_SCALERS, SCALER),
    **{f"{scaler}.{name}": names for scaler in _SCALERS for name, names in _SCALER_METHODS.items()},
    "paddle.distributed.fleet.distributed_scaler": ("scaler",),
    "paddle.distributed.sharding.group_sharded_parallel": ("model", "optimizer", "level", "scaler"),
    "paddle.static.amp.decorate": STATIC[:2],
    "paddle.fluid.contrib.mixed_precision.decorate": STATIC_OLD,
    "paddle.static.amp.bf16.decorate_bf16": (
        "optimizer", "amp_lists", "use_pure_bf16", "use_bf16_guard",
    ),
    **{f"{name}.minimize": ("loss",) for name in _STATIC_DECORATORS},
    _LISTS: ("custom_white_list", "custom_black_list", "custom_black_varnames", "dtype"),
    _BF16_LISTS: ("custom_bf16_list", "custom_fp32_list", "custom_fp32_varnames"),
    "paddle.Model": ("network", "inputs", "labels"),
    "paddle.Model.prepare": ("optimizer", "loss", "metrics", "amp_configs"),
    _STRATEGY: (),
    f"{_STRATEGY}.amp": ("value",),
    f"{_STRATEGY}.amp_configs": ("value",),
    f"{_STRATEGY}.gradient_merge_configs": ("value",),
    "paddle.nn.ClipGradByGlobalNorm": ("clip_norm", "group_name", "auto_skip_clip"),
    "paddle.nn.ClipGradByNorm": ("clip_norm",),
    "paddle.nn.ClipGradByValue": ("max", "min"),
    "paddle.nn.utils.clip_grad_value_": ("parameters", "clip_value"),
    "paddle.ParamAttr": (
        "name", "initializer", "learning_rate", "regularizer", "trainable", "do_model_average",
        "need_clip",
    ),
    "paddle.nn.utils.clip_grad_norm_": (
        "parameters", "max_norm", "norm_type", "error_if_nonfinite",
    ),
}  # fmt: skip

_FLUID = ("paddle.fluid.dygraph", "paddle.fluid.dygraph.amp", "paddle.base.dygraph.amp")
ALIASES: Mapping[str, str] = {
    "paddle.amp.amp_guard": "paddle.amp.auto_cast",
    "paddle.amp.auto_cast.auto_cast": "paddle.amp.auto_cast",
    "paddle.amp.auto_cast.amp_guard": "paddle.amp.auto_cast",
    **{f"{module}.amp_guard": "paddle.amp.auto_cast" for module in _FLUID},
    **{f"{module}.auto_cast.amp_guard": "paddle.amp.auto_cast" for module in _FLUID},
    "paddle.cuda.amp.autocast": "paddle.amp.autocast",
    "paddle.cuda.amp.GradScaler": "paddle.amp.GradScaler",
    "paddle.amp.amp_decorate": "paddle.amp.decorate",
    "paddle.amp.auto_cast.decorate": "paddle.amp.decorate",
    **{f"{module}.amp_decorate": "paddle.amp.decorate" for module in _FLUID},
    "paddle.amp.grad_scaler.GradScaler": "paddle.amp.GradScaler",
    "paddle.amp.grad_scaler.AmpScaler": "paddle.amp.AmpScaler",
    **{f"{module}.AmpScaler": "paddle.amp.AmpScaler" for module in _FLUID},
    **{f"{module}.loss_scaler.AmpScaler": "paddle.amp.AmpScaler" for module in _FLUID},
    "paddle.static.amp.decorator.decorate": "paddle.static.amp.decorate",
    "paddle.fluid.contrib.decorate": "paddle.fluid.contrib.mixed_precision.decorate",
    "paddle.fluid.contrib.mixed_precision.decorator.decorate": (
        "paddle.fluid.contrib.mixed_precision.decorate"
    ),
    "paddle.fluid.contrib.mixed_precision.bf16.decorate_bf16": (
        "paddle.static.amp.bf16.decorate_bf16"
    ),
    **{
        f"{module}.{name}": _LISTS
        for module in (
            "paddle.static.amp",
            "paddle.static.amp.fp16_lists",
            "paddle.fluid.contrib.mixed_precision",
            "paddle.fluid.contrib.mixed_precision.fp16_lists",
        )
        for name in ("AutoMixedPrecisionLists", "CustomOpLists")
        if f"{module}.{name}" != _LISTS
    },
    "paddle.fluid.contrib.mixed_precision.bf16.AutoMixedPrecisionListsBF16": _BF16_LISTS,
    "paddle.hapi.Model": "paddle.Model",
    "paddle.hapi.model.Model": "paddle.Model",
    "paddle.incubate.hapi.model.Model": "paddle.Model",
    "paddle.fleet.DistributedStrategy": _STRATEGY,
    "paddle.distributed.fleet.base.distributed_strategy.DistributedStrategy": _STRATEGY,
    "paddle.nn.clip.ClipGradByGlobalNorm": "paddle.nn.ClipGradByGlobalNorm",
    "paddle.nn.clip.ClipGradByNorm": "paddle.nn.ClipGradByNorm",
    "paddle.nn.clip.ClipGradByValue": "paddle.nn.ClipGradByValue",
    **{
        f"paddle.{module}.{function}": f"paddle.nn.utils.{function}"
        for module in ("nn.utils.clip_grad_norm_", "nn.utils.clip_grad_value_")
        for function in ("clip_grad_norm_", "clip_grad_value_")
    },
    "paddle.fluid.clip.GradientClipByGlobalNorm": "paddle.nn.ClipGradByGlobalNorm",
    "paddle.fluid.clip.GradientClipByNorm": "paddle.nn.ClipGradByNorm",
    "paddle.fluid.clip.GradientClipByValue": "paddle.nn.ClipGradByValue",
}

HANDLERS: Mapping[str, Handler] = {
    "paddle.amp.auto_cast": auto_cast,
    "paddle.amp.autocast": autocast,
    "paddle.amp.decorate": decorate,
    **dict.fromkeys(_OPTIMIZERS, optimizer),
    "paddle.amp.GradScaler": grad_scaler,
    "paddle.amp.AmpScaler": amp_scaler,
    **{f"{scaler}.set_{each}": setter(each) for scaler in _SCALERS for each in NUMBERS},
    "paddle.static.amp.decorate": static_decorate,
    "paddle.fluid.contrib.mixed_precision.decorate": fluid_decorate,
    "paddle.static.amp.bf16.decorate_bf16": bf16_decorate,
    "paddle.Model.prepare": prepare,
    f"{_STRATEGY}.amp": strategy_amp,
    f"{_STRATEGY}.amp_configs": strategy_amp_configs,
    f"{_STRATEGY}.gradient_merge_configs": gradient_merge,
    **dict.fromkeys(CLIPS, clip_object),
    "paddle.nn.utils.clip_grad_norm_": clipping.by_norm,
    "paddle.nn.utils.clip_grad_value_": clipping.by_value,
    "paddle.ParamAttr": parameter,
    **{f"{scaler}.unscale_": unscale for scaler in _SCALERS},
}

DIALECT = Dialect(
    framework="paddle",
    signatures=SIGNATURES,
    aliases=ALIASES,
    handlers=HANDLERS,
    words=(
        "auto_cast",
        "amp_guard",
        "amp_decorate",
        "paddle.amp",
        "paddle import amp",
        "AmpScaler",
        "GradScaler",
        "mixed_precision",
        "static.amp",
        "amp_configs",
        "strategy.amp",
    ),
    finish=finish,
)
