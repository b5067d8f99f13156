"""DeepSpeed: what the sections of its configuration mean, in a JSON file or in ``deepspeed.initialize``.

Keys and defaults are those of August 2026: deepspeed/runtime/precision_config.py (fp16, bf16),
deepspeed/runtime/config.py and constants.py (torch_autocast, amp, gradient_clipping,
gradient_accumulation_steps), and how scales move deepspeed/runtime/fp16/loss_scaler.py under ZeRO,
deepspeed/runtime/fp16/fused_optimizer.py without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ampbridge_port.dialect import Call, Dialect, Draft, NotKnown
from ampbridge_port.readers import apex, clipping, scaling
from ampbridge_port.readers.torch import dtype_name, tell_of_pure
from ampbridge_port.table import Table

MODES = ("fp16", "bf16", "torch_autocast", "amp")


def configure(config: Table, draft: Draft) -> None:
    """What a whole configuration means."""
    try:
        modes = [name for name in MODES if is_on(section(config, name))]
    except NotKnown as error:
        draft.unknown["policy.level"] = error.place
    else:
        if len(modes) > 1:
            message = (
                f"DeepSpeed refuses {' and '.join(modes)} together; the recipe has {modes[0]}."
            )
            draft.find("note", section(config, modes[1]).place, message)
        _MEANINGS[modes[0] if modes else "float32"](config, draft)
    _step(config, draft)


def section(config: Table, name: str) -> Table:
    """A section of ``MODES``; ``bf16`` was called ``bfloat16`` once."""
    if name == "bf16" and "bf16" not in config.entries:
        return config.table("bfloat16")
    return config.table(name)


def is_on(mode: Table) -> bool:
    """Whether a section is enabled.

    Raises:
        NotKnown: if that is filled in elsewhere.
    """
    return mode.flag("enabled", False)


def zero_stage(config: Table) -> Any:
    """The stage of ZeRO, 0 for none.

    Raises:
        NotKnown: if it is filled in elsewhere.
    """
    if config.get("zero_optimization") is True:
        return 1  # as it was written once
    return config.table("zero_optimization").get("stage", 0)


# -- precision


def _float32(config: Table, draft: Draft) -> None:
    draft.set("policy.level", "O0")


def _low(draft: Draft, mode: Table, dtype: str, masters_too: str) -> None:
    """A model cast as a whole, with float32 masters in DeepSpeed's optimizer."""
    call = mode.call(dtype, (masters_too,))
    draft.set("policy.level", "O2")
    draft.set("policy.dtype", dtype)
    draft.set("policy.lists", "torch")
    if masters_too in call.arguments:
        draft.take("policy.master_weights", call, masters_too, False, lambda low: not low)
    draft.comments["policy.level"] = "parameters and all ops low, float32 masters"
    tell_of_pure(draft, call, dtype)


def _fp16(config: Table, draft: Draft) -> None:
    fp16 = section(config, "fp16")
    _low(draft, fp16, "float16", "fp16_master_weights_and_grads")
    call = fp16.call("fp16", fp16.entries)
    try:
        scale = scaling.number(call.value("loss_scale", 0))
    except NotKnown as error:
        scaling.like(draft, "deepspeed")
        draft.unknown["scaler.init_scale"] = draft.unknown["scaler.dynamic"] = error.place
        return
    if scale != 0:
        scaling.fixed(draft, "deepspeed", scale)
        draft.comments["scaler.init_scale"] = "loss_scale"
        return
    scaling.like(draft, "deepspeed")
    draft.take("scaler.init_scale", call, "initial_scale_power", 16, _power_of_two)
    draft.take("scaler.growth_interval", call, "loss_scale_window", 1000, scaling.whole)
    draft.take("scaler.min_scale", call, "min_loss_scale", 1, scaling.number)
    _hysteresis(config, call, draft)


def _power_of_two(power: Any) -> Any:
    exponent = scaling.number(power)
    usable = isinstance(exponent, float) and -1000 < exponent < 1000
    return 2.0**exponent if usable else power


def _hysteresis(config: Table, call: Call, draft: Draft) -> None:
    """How overflows are counted: by the optimizers of ZeRO alone."""
    try:
        stage = zero_stage(config)
    except NotKnown as error:
        draft.unknown["scaler.backoff_interval"] = error.place
        draft.unknown["scaler.at_min_scale"] = error.place
        return
    if stage == 0:
        draft.set("scaler.backoff_interval", 1)
        draft.set("scaler.at_min_scale", "stay")
        for key in {"hysteresis", "consecutive_hysteresis"} & call.arguments.keys():
            draft.find(
                "ignored",
                call.place_of(key),
                f"Without ZeRO, DeepSpeed's fp16 optimizers take no notice of {key}: "
                "each overflow lowers the scale, and none is an error.",
                '"zero_optimization": {"stage": 1}, or backoff_interval in the recipe.',
            )
        return
    draft.take("scaler.backoff_interval", call, "hysteresis", 2, scaling.whole)
    draft.take("scaler.backoff_count", call, "consecutive_hysteresis", False, _backoff_count)


def _backoff_count(consecutive: Any) -> str:
    return "until_finite" if consecutive is True else "until_growth"


def _bf16(config: Table, draft: Draft) -> None:
    _low(draft, section(config, "bf16"), "bfloat16", "bf16_master_weights_and_grads")


def _torch_autocast(config: Table, draft: Draft) -> None:
    """``torch.autocast``; in float16 with torch's own GradScaler, at every stage of ZeRO."""
    call = config.table("torch_autocast").call("torch_autocast", ("dtype",))
    draft.set("policy.level", "O1")
    draft.take("policy.dtype", call, "dtype", "float16", _autocast_dtype)
    draft.set("policy.lists", "torch")
    if draft.settings.get("policy.dtype") != "bfloat16":
        scaling.like(draft, "torch")
    modules = "lower_precision_safe_modules"
    if modules in config.table("torch_autocast").entries:
        draft.find(
            "ignored",
            config.table("torch_autocast").place_of(modules),
            "These modules are cast no further than torch.autocast casts them by itself: the list "
            "decides in which dtype their gradients are communicated.",
        )


def _autocast_dtype(written: Any) -> Any:
    return {"fp16": "float16", "bf16": "bfloat16"}.get(written, dtype_name(written))


def _amp(config: Table, draft: Draft) -> None:
    """apex: ``amp.initialize(model, optimizer, **amp)``."""
    amp = config.table("amp")
    passed = [key for key in amp.entries if key != "enabled"]
    apex.initialize(amp.call("apex.amp.initialize", passed), draft)


_MEANINGS = {
    "float32": _float32,
    "fp16": _fp16,
    "bf16": _bf16,
    "torch_autocast": _torch_autocast,
    "amp": _amp,
}


# -- steps


def _step(config: Table, draft: Draft) -> None:
    call = config.call("deepspeed", ("gradient_clipping", "gradient_accumulation_steps"))
    clipping.take(draft, "clip_norm", call, "gradient_clipping", clipping.limit, 1.0)
    if "gradient_clipping" not in call.arguments:
        draft.find(
            "note",
            config.place,
            "gradient_clipping is 1.0 where it is not written, since DeepSpeed 0.19.3 "
            "(June 2026); before, there was no clipping.",
        )
    try:
        draft.take(
            "step.accumulate", call, "gradient_accumulation_steps", _accumulate(config), whole
        )
    except NotKnown as error:
        draft.unknown["step.accumulate"] = error.place


def _accumulate(config: Table) -> int:
    """What DeepSpeed computes where ``gradient_accumulation_steps`` is not written.

    Raises:
        NotKnown: if it depends on the number of devices.
    """
    if "gradient_accumulation_steps" in config.entries:
        return 1
    batch, micro_batch = "train_batch_size", "train_micro_batch_size_per_gpu"
    if {batch, micro_batch} <= config.entries.keys() and config.get(batch) != config.get(
        micro_batch
    ):
        ranks = f"{config.get(batch)} / ({config.get(micro_batch)} x the number of ranks)"
        raise NotKnown(replace(config.place_of(batch), text=ranks))
    return 1


def whole(value: Any) -> Any:
    """A number of micro-batches; 1, which is usual, need not be said."""
    number = scaling.whole(value)
    return None if number == 1 else number


# -- Python


def initialize(call: Call, draft: Draft) -> None:
    """``deepspeed.initialize(args=None, model=None, ..., config=None, config_params=None)``."""
    argument = call.arguments.get("config") or call.arguments.get("config_params")
    if argument is not None and argument.parts() is not None:
        configure(Table.of_argument(argument), draft)
        return
    try:
        config = None if argument is None else argument.evaluate()
    except NotKnown as error:
        draft.unknown["policy.level"] = error.place
        return
    draft.unknown["policy.level"] = call.place if argument is None else argument.place
    file = config if isinstance(config, str) else "FILE.json, which --deepspeed_config names"
    draft.find("note", call.place, "A file has the precision.", f"ampbridge port {file}")


DIALECT = Dialect(
    framework="deepspeed",
    signatures={
        "deepspeed.initialize": (
            "args",
            "model",
            "optimizer",
            "model_parameters",
            "training_data",
            "lr_scheduler",
            "distributed_port",
            "mpu",
            "dist_init_required",
            "collate_fn",
            "config",
            "mesh_param",
            "config_params",
        ),
    },
    aliases={},
    handlers={"deepspeed.initialize": initialize},
    words=("deepspeed",),
)
