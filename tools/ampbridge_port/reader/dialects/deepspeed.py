"""DeepSpeed: what the sections of its configuration mean, in a JSON file or in ``deepspeed.initialize``.

Keys and defaults are those of November 2026: deepspeed/runtime/precision_config.py (fp16, bf16),
deepspeed/runtime/config.py and constants.py (torch_autocast, amp, gradient_clipping,
gradient_accumulation_steps), deepspeed/runtime/base_optimizer.py (which scaler scales), and how scales
move deepspeed/runtime/fp16/loss_scaler.py under ZeRO, deepspeed/runtime/fp16/fused_optimizer.py without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ampbridge_port.reader.dialects import apex, steps
from ampbridge_port.reader.dialects.calls import Call, Dialect, Draft, NotKnown, doubting
from ampbridge_port.reader.dialects.torch import tell_of_pure

SECTIONS = {
    "fp16": (
        "enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis "
        "consecutive_hysteresis min_loss_scale fp16_master_weights_and_grads"
    ),
    "bf16": (
        "enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads "
        "bf16_optimizer_states"
    ),
    "torch_autocast": "enabled dtype lower_precision_safe_modules",
}
MODES = (*SECTIONS, "amp")


def configure(config: Call, draft: Draft) -> None:
    """What a whole configuration means; ``config`` has its sections as arguments."""
    _precision(config, draft)
    _step(config, draft)


@doubting("policy.level")
def _precision(config: Call, draft: Draft) -> None:
    modes = [name for name in MODES if section(config, name).flag("enabled", False)]
    for mode in modes:
        present = section(config, mode)
        for key in present.arguments if mode in SECTIONS else ():
            if key not in SECTIONS[mode].split():
                draft.find_no_parameter(mode, key, present.place_of(key))
    if modes[1:] not in ([], ["torch_autocast"]):
        message = f"DeepSpeed refuses {' and '.join(modes)} together; the recipe has {modes[0]}."
        draft.note(section(config, modes[1]).place, message)
    if not modes:
        draft.set("policy.level", "O0")
    elif modes[0] in ("fp16", "bf16"):
        _low(config, draft, modes[0], "torch_autocast" in modes)
    elif modes[0] == "torch_autocast":
        _torch_autocast(section(config, "torch_autocast"), draft)
    else:
        apex.initialize(replace(section(config, "amp"), name="apex.amp.initialize"), draft)


def section(config: Call, name: str) -> Call:
    """A section of ``MODES``; ``bf16`` was called ``bfloat16`` once."""
    name = "bfloat16" if name == "bf16" and "bf16" not in config.arguments else name
    found = config.parts(name)
    if found is None and config.given(name):
        raise NotKnown(config.place_of(name))
    found = found or config.named(name)
    return replace(found, name=name, place=config.place_of(name))


def _low(config: Call, draft: Draft, mode: str, in_region: bool) -> None:
    """A model cast as a whole, with float32 masters in DeepSpeed's optimizer; perhaps in a region, too."""
    dtype, low = {"fp16": "float16", "bf16": "bfloat16"}[mode], section(config, mode)
    within = None
    if in_region:
        region = section(config, "torch_autocast")
        _torch_autocast(region, draft)
        within = draft.settings.get("policy.dtype")
        draft.forget("policy.")
        draft.comments["policy.level"] = "low parameters in a region, float32 masters"
        if within != dtype:
            mixed = f"A region in {within} with weights in {dtype}"
            draft.lost(region.place_of("dtype"), f"{mixed}; a recipe has one low precision.")
    else:
        draft.comments["policy.level"] = "parameters and all ops low, float32 masters"
        tell_of_pure(draft, low, dtype)
    draft.set_policy("O2", dtype, "torch")
    masters, slots = f"{mode}_master_weights_and_grads", "bf16_optimizer_states"
    if masters in low.arguments:
        draft.take_flag("policy.masters", low, masters, False, "none", "float32")
    draft.take_flag("policy.slots", low, slots, False, "bfloat16", None)
    if draft.settings.get("policy.slots") == "bfloat16":
        hint = "masters = 'none' without slots has the same bits on torch."
        steps.tell_of_low_slots(draft, low.place_of(slots), hint)
    elif draft.settings.get("policy.masters") == "none":
        message = "DeepSpeed's Adam on the CPU has float32 states; torch's are low without masters."
        draft.lost(low.place_of(masters), message)
    if mode == "fp16" and within == "float16":
        message = (
            "torch's scaler scales the loss here, and DeepSpeed 0.19.8 divides the gradients by the scale "
            "of fp16 besides; the recipe does not."
        )
        draft.note(low.place, message)
    elif mode == "fp16":
        _scaler(low, draft, config)


@doubting("scaler.init_scale", "scaler.dynamic")
def _scaler(fp16: Call, draft: Draft, config: Call) -> None:
    steps.like(draft, "deepspeed")
    scale = steps.number(fp16.value("loss_scale", 0))
    if scale != 0:
        steps.fixed(draft, "deepspeed", scale)
        draft.comments["scaler.init_scale"] = "loss_scale"
        return
    draft.take("scaler.init_scale", fp16, "initial_scale_power", 16, _power_of_two)
    draft.take("scaler.growth_interval", fp16, "loss_scale_window", 1000, steps.whole)
    draft.take("scaler.min_scale", fp16, "min_loss_scale", 1, steps.number)
    try:
        stage = _stage(config)
    except NotKnown as error:
        draft.doubt(error.place, "scaler.backoff_interval", "scaler.at_min_scale")
        return
    if stage != 0:  # the optimizers of ZeRO alone count overflows
        draft.take("scaler.backoff_interval", fp16, "hysteresis", 2, steps.whole)
        key, counts = "consecutive_hysteresis", {True: "until_finite"}
        draft.take(
            "scaler.backoff_count", fp16, key, False, lambda v: counts.get(v, "until_growth")
        )
        return
    draft.set("scaler.backoff_interval", 1)
    draft.set("scaler.at_min_scale", "stay")
    for key in sorted({"hysteresis", "consecutive_hysteresis"} & fp16.arguments.keys()):
        draft.ignored(
            fp16.place_of(key),
            f"Without ZeRO, DeepSpeed's fp16 optimizers take no notice of {key}: each overflow "
            "lowers the scale, and none is an error.",
            '"zero_optimization": {"stage": 1}, or backoff_interval in the recipe.',
        )


def _power_of_two(power: Any) -> Any:
    exponent = steps.number(power)
    return 2.0**exponent if isinstance(exponent, float) and -1000 < exponent < 1000 else power


def _stage(config: Call) -> Any:
    """The stage of ZeRO, 0 for none; ``true`` was stage 1 once."""
    zero = config.parts("zero_optimization")
    if zero is None:
        return int(config.value("zero_optimization", None) is True)
    return zero.value("stage", 0)


def _torch_autocast(mode: Call, draft: Draft) -> None:
    """``torch.autocast``; in float16 with torch's own GradScaler, at every stage of ZeRO."""
    draft.set("policy.level", "O1")
    draft.take("policy.dtype", mode, "dtype", "float16", steps.dtype_name)
    draft.set("policy.lists", "torch")
    if draft.settings.get("policy.dtype") != "bfloat16":
        steps.like(draft, "torch")
    if "lower_precision_safe_modules" in mode.arguments:
        message = (
            "These modules are cast no further than torch.autocast casts them by itself: the list "
            "decides in which dtype their gradients are communicated."
        )
        draft.ignored(mode.place_of("lower_precision_safe_modules"), message)


def _step(config: Call, draft: Draft) -> None:
    steps.clip(draft, "clip_norm", config, "gradient_clipping", steps.limit, 1.0)
    if draft.settings.get("step.clip_norm") == "auto":  # transformers fills it in
        steps.doubt_clip(draft, config.place_of("gradient_clipping"))
    if "gradient_clipping" not in config.arguments:
        message = (
            "gradient_clipping is 1.0 where it is not written, since DeepSpeed 0.19.3 (June 2026); "
            "before, there was no clipping."
        )
        draft.note(config.place, message)
    batch, micro = "train_batch_size", "train_micro_batch_size_per_gpu"
    count = "gradient_accumulation_steps"
    if count not in config.arguments and {batch, micro} <= config.arguments.keys():
        steps.accumulate_by_ranks(config, draft, batch, micro)
    else:
        draft.take("step.accumulate", config, count, 1, steps.micro_batches)


@doubting("policy.level")
def initialize(call: Call, draft: Draft) -> None:
    """``deepspeed.initialize(args=None, model=None, ..., config=None, config_params=None)``."""
    key = "config" if "config" in call.arguments else "config_params"
    config = call.parts(key)
    if config is not None:
        configure(replace(config, name="deepspeed", place=call.place_of(key)), draft)
        return
    file = call.value(key, None)
    draft.doubt(call.place_of(key), "policy.level")
    file = file if isinstance(file, str) else "FILE.json, which --deepspeed_config names"
    draft.note(call.place, "A file has the precision.", f"ampbridge port {file}, or -c {file}")


DIALECT = Dialect(
    "deepspeed",
    {
        "deepspeed.initialize": (
            "args model optimizer model_parameters training_data lr_scheduler distributed_port "
            "mpu dist_init_required collate_fn config mesh_param config_params",
            initialize,
        )
    },
)
