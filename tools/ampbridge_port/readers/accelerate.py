"""Hugging Face: ``accelerate.Accelerator``, and ``transformers.TrainingArguments``, which makes one.

Defaults are those of accelerate 1.15 (accelerate/accelerator.py, accelerate/utils/dataclasses.py) and
of transformers 5 (transformers/training_args.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ampbridge_port.dialect import Call, Dialect, Draft, NotKnown
from ampbridge_port.readers import apex, clipping, scaling
from ampbridge_port.readers.deepspeed import whole
from ampbridge_port.readers.torch import take_scaler
from ampbridge_port.reading import Place

PRECISIONS: Mapping[str, str] = {"no": "float32", "fp16": "float16", "bf16": "bfloat16"}


def accelerator(call: Call, draft: Draft) -> None:
    """``Accelerator(mixed_precision=None, gradient_accumulation_steps=1, ...)``."""
    _accelerator_precision(call, draft)
    if "gradient_accumulation_steps" in call.arguments or "step.accumulate" not in draft.settings:
        draft.take("step.accumulate", call, "gradient_accumulation_steps", 1, whole)


def _accelerator_precision(call: Call, draft: Draft) -> None:
    try:
        written = call.value("mixed_precision", None)
        on_cpu = call.flag("cpu", False)
        with_deepspeed = call.value("deepspeed_plugin", None) is not None
        with_fsdp = _is_passed(call, "fsdp_plugin")
    except NotKnown as error:
        draft.unknown["policy.level"] = draft.unknown["policy.dtype"] = error.place
        return
    if with_deepspeed:
        tell_of_deepspeed(draft, call.place_of("deepspeed_plugin"))
    elif written is None:
        draft.unknown["policy.level"] = draft.unknown["policy.dtype"] = call.place
        draft.find(
            "note",
            call.place,
            "`accelerate config` or `accelerate launch --mixed_precision` says the precision here; "
            "where neither does, it is float32.",
            "read that file too: ampbridge port ~/.cache/huggingface/accelerate/default_config.yaml",
        )
    else:
        place = call.place_of("mixed_precision")
        precision(draft, str(written).lower(), place, on_cpu=on_cpu, sharded=with_fsdp)


def _is_passed(call: Call, argument: str) -> bool:
    try:
        return call.value(argument, None) is not None
    except NotKnown:
        return True  # an object that the file makes, of whatever


def precision(
    draft: Draft, name: str, place: Place, *, on_cpu: bool = False, sharded: bool = False
) -> None:
    """What ``mixed_precision=name`` means: ``torch.autocast``, with a GradScaler in float16.

    ``sharded``: FSDP casts the parameters besides (accelerate/state.py, set_mixed_precision).
    """
    if name not in PRECISIONS:
        draft.unknown["policy.level"] = place
        draft.find(
            "lost",
            place,
            f"mixed_precision={name!r} computes in 8 bits, which a recipe cannot say.",
            "the nearest is policy.level=O1 with policy.dtype=bfloat16.",
        )
        return
    dtype = PRECISIONS[name]
    if on_cpu and dtype == "float16":
        draft.find("ignored", place, "accelerate does no fp16 on a CPU.")
        dtype = "float32"
    if dtype == "float32":
        draft.set("policy.level", "O0")
        return
    draft.set("policy.level", "O2" if sharded else "O1")
    draft.set("policy.dtype", dtype)
    draft.set("policy.lists", "torch")
    draft.comments["policy.dtype"] = f"mixed precision {name!r}"
    if sharded:
        message = "FSDP casts the parameters of normalizations too; O2 keeps those in float32."
        draft.find("lost", place, message)
    if dtype == "float16":
        scaling.unless_known(draft, "torch")


def tell_of_deepspeed(draft: Draft, place: Place) -> None:
    """DeepSpeed casts the model, by a configuration of its own."""
    draft.unknown["policy.level"] = place
    draft.find(
        "note",
        place,
        "DeepSpeed has the precision and the scaler, from its own configuration.",
        "read that: ampbridge port ds_config.json",
    )


def unscale(call: Call, draft: Draft) -> None:
    """``accelerator.unscale_gradients(optimizer=None)``."""
    draft.seen[clipping.UNSCALED] = call.place


def clip_grad_norm(call: Call, draft: Draft) -> None:
    """``accelerator.clip_grad_norm_(parameters, max_norm, norm_type=2)``, which unscales first."""
    unscale(call, draft)
    clipping.by_norm(call, draft)


def clip_grad_value(call: Call, draft: Draft) -> None:
    """``accelerator.clip_grad_value_(parameters, clip_value)``, which unscales first."""
    unscale(call, draft)
    clipping.by_value(call, draft)


def finish(draft: Draft) -> None:
    """Gradients that torch's functions clip are still scaled, unless the accelerator unscales them."""
    if clipping.UNSCALED not in draft.seen:
        clipping.tell_of_order(draft, "accelerator.clip_grad_norm_, which unscales them.")


def autocast_kwargs(call: Call, draft: Draft) -> None:
    """``AutocastKwargs(enabled=True, cache_enabled=None)``."""
    try:
        enabled = call.flag("enabled", True)
    except NotKnown as error:
        draft.find("unknown", error.place, "Whether autocast is on.")
        return
    if not enabled:
        draft.find(
            "lost",
            call.place,
            "Regions with these settings run in float32; a recipe has one policy for all of a step.",
            "name their ops under deny, or their layers under keep.",
        )


def accumulation_plugin(call: Call, draft: Draft) -> None:
    """``GradientAccumulationPlugin(num_steps)``."""
    draft.take("step.accumulate", call, "num_steps", None, whole)


def training_arguments(call: Call, draft: Draft) -> None:
    """``TrainingArguments(fp16=False, bf16=False, max_grad_norm=1.0, ...)``."""
    _training_precision(call, draft)
    draft.take("step.accumulate", call, "gradient_accumulation_steps", 1, whole)
    clipping.take(draft, "clip_norm", call, "max_grad_norm", clipping.limit, 1.0)


def _training_precision(call: Call, draft: Draft) -> None:
    try:
        if call.value("deepspeed", None):
            tell_of_deepspeed(draft, call.place_of("deepspeed"))
            return
        fp16, bf16 = call.flag("fp16", False), call.flag("bf16", False)
        backends = [call.value(name, "auto") for name in ("half_precision_backend", "fp16_backend")]
    except NotKnown as error:
        draft.unknown["policy.level"] = draft.unknown["policy.dtype"] = error.place
        return
    if fp16 and bf16:
        message = "transformers refuses fp16 and bf16 together; the recipe has fp16."
        draft.find("note", call.place_of("bf16"), message)
    if fp16 and "apex" in backends:
        level = call.arguments.get("fp16_opt_level")
        arguments = {} if level is None else {"opt_level": level}
        apex.initialize(Call("apex.amp.initialize", call.place, arguments), draft)
        return
    flag = "fp16" if fp16 else "bf16"
    precision(draft, flag if fp16 or bf16 else "no", call.place_of(flag))


def _everywhere(name: str, *modules: str) -> dict[str, Any]:
    return {f"accelerate.{module}.{name}": f"accelerate.{name}" for module in modules}


_SCALER_KWARGS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
_TRAINING = (
    "output_dir",
    "fp16",
    "bf16",
    "fp16_opt_level",
    "half_precision_backend",
    "fp16_backend",
    "gradient_accumulation_steps",
    "max_grad_norm",
    "deepspeed",
)

DIALECT = Dialect(
    framework="accelerate",
    signatures={
        "accelerate.Accelerator": (
            "device_placement",
            "split_batches",
            "mixed_precision",
            "gradient_accumulation_steps",
            "cpu",
            "dataloader_config",
            "deepspeed_plugin",
            "fsdp_plugin",
            "kwargs_handlers",
            "gradient_accumulation_plugin",
        ),
        "accelerate.Accelerator.clip_grad_norm_": ("parameters", "max_norm", "norm_type"),
        "accelerate.Accelerator.clip_grad_value_": ("parameters", "clip_value"),
        "accelerate.Accelerator.unscale_gradients": ("optimizer",),
        "accelerate.Accelerator.backward": ("loss",),
        "accelerate.Accelerator.accumulate": (),
        "accelerate.GradScalerKwargs": _SCALER_KWARGS,
        "accelerate.AutocastKwargs": ("enabled", "cache_enabled"),
        "accelerate.GradientAccumulationPlugin": ("num_steps",),
        "transformers.TrainingArguments": _TRAINING,
    },
    aliases={
        **_everywhere("Accelerator", "accelerator"),
        **_everywhere("GradScalerKwargs", "utils", "utils.dataclasses"),
        **_everywhere("AutocastKwargs", "utils", "utils.dataclasses"),
        **_everywhere("GradientAccumulationPlugin", "utils", "utils.dataclasses"),
        "transformers.Seq2SeqTrainingArguments": "transformers.TrainingArguments",
        "transformers.training_args.TrainingArguments": "transformers.TrainingArguments",
        "transformers.training_args_seq2seq.Seq2SeqTrainingArguments": "transformers.TrainingArguments",
    },
    handlers={
        "accelerate.Accelerator": accelerator,
        "accelerate.Accelerator.clip_grad_norm_": clip_grad_norm,
        "accelerate.Accelerator.clip_grad_value_": clip_grad_value,
        "accelerate.Accelerator.unscale_gradients": unscale,
        "accelerate.GradScalerKwargs": take_scaler,
        "accelerate.AutocastKwargs": autocast_kwargs,
        "accelerate.GradientAccumulationPlugin": accumulation_plugin,
        "transformers.TrainingArguments": training_arguments,
    },
    finish=finish,
    words=("import accelerate", "accelerate import", "from accelerate.", "TrainingArguments"),
)
