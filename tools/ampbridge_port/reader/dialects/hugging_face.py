"""Hugging Face: ``accelerate.Accelerator``, and ``transformers.TrainingArguments``, which makes one.

Defaults are those of accelerate 1.15 (accelerate/accelerator.py, accelerate/utils/dataclasses.py) and
of transformers 5 (transformers/training_args.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ampbridge_port.reader.dialects import apex, deepspeed, steps
from ampbridge_port.reader.dialects.calls import Call, Dialect, Draft, constant, doubting
from ampbridge_port.reader.dialects.torch import scaler_kwargs
from ampbridge_port.reading import Place

PRECISIONS: Mapping[str, str] = {"no": "float32", "fp16": "float16", "bf16": "bfloat16"}


def accelerator(call: Call, draft: Draft) -> None:
    """``Accelerator(mixed_precision=None, gradient_accumulation_steps=1, ...)``."""
    _accelerator_precision(call, draft)
    if "gradient_accumulation_steps" in call.arguments or "step.accumulate" not in draft.settings:
        draft.take("step.accumulate", call, "gradient_accumulation_steps", 1, steps.micro_batches)


@doubting("policy.level", "policy.dtype")
def _accelerator_precision(call: Call, draft: Draft) -> None:
    written = call.value("mixed_precision", None)
    on_cpu = call.flag("cpu", False)
    if call.value("deepspeed_plugin", None) is not None:
        _tell_of_deepspeed(draft, call.place_of("deepspeed_plugin"))
    elif written is None:
        draft.doubt(call.place, "policy.level", "policy.dtype")
        draft.note(
            call.place,
            "`accelerate config` or `accelerate launch --mixed_precision` says the precision "
            "here; where neither does, it is float32.",
            "read that file too: ampbridge port ~/.cache/huggingface/accelerate/default_config.yaml",
        )
    else:
        place, sharded = call.place_of("mixed_precision"), call.given("fsdp_plugin")
        precision(draft, str(written).lower(), place, on_cpu=on_cpu, sharded=sharded)


def precision(
    draft: Draft, name: str, place: Place, *, on_cpu: bool = False, sharded: bool = False
) -> None:
    """What ``mixed_precision=name`` means: ``torch.autocast``, with a GradScaler in float16.

    ``sharded``: FSDP casts the parameters besides (accelerate/state.py, set_mixed_precision).
    """
    if name not in PRECISIONS:
        draft.doubt(place, "policy.level")
        message = f"mixed_precision={name!r} computes in 8 bits, which a recipe cannot say."
        draft.lost(place, message, "the nearest is policy.level=O1 with policy.dtype=bfloat16.")
        return
    dtype = PRECISIONS[name]
    if on_cpu and dtype == "float16":
        draft.ignored(place, "accelerate does no fp16 on a CPU.")
        dtype = "float32"
    if dtype == "float32":
        draft.set("policy.level", "O0")
        return
    draft.set_policy("O2" if sharded else "O1", dtype, "torch")
    draft.comments["policy.dtype"] = f"mixed precision {name!r}"
    if sharded:
        message = "FSDP casts the parameters of normalizations too; O2 keeps those in float32."
        draft.lost(place, message)
    if dtype == "float16" and not draft.says("scaler."):
        steps.like(draft, "torch")


def _tell_of_deepspeed(draft: Draft, place: Place) -> None:
    draft.doubt(place, "policy.level")
    message = "DeepSpeed has the precision and the scaler, from its own configuration."
    draft.note(place, message, "read that: ampbridge port ds_config.json")


def clip_grad_norm(call: Call, draft: Draft) -> None:
    """``accelerator.clip_grad_norm_(parameters, max_norm, norm_type=2)``, which unscales first."""
    steps.unscales(call, draft)
    steps.clip_by_norm(call, draft)


def clip_grad_value(call: Call, draft: Draft) -> None:
    """``accelerator.clip_grad_value_(parameters, clip_value)``, which unscales first."""
    steps.unscales(call, draft)
    steps.clip_by_value(call, draft)


def finish(draft: Draft) -> None:
    """Gradients that torch's functions clip are still scaled, unless the accelerator unscales them."""
    if steps.UNSCALED not in draft.seen:
        steps.tell_of_order(draft, "accelerator.clip_grad_norm_, which unscales them.")


def autocast_kwargs(call: Call, draft: Draft) -> None:
    """``AutocastKwargs(enabled=True, cache_enabled=None)``."""
    if not call.flag("enabled", True):
        message = (
            "Regions with these settings run in float32; a recipe has one policy for all of a step."
        )
        hint = "name their ops under deny, or their layers under keep."
        draft.lost(call.place, message, hint)


def accumulation_plugin(call: Call, draft: Draft) -> None:
    """``GradientAccumulationPlugin(num_steps)``."""
    draft.take("step.accumulate", call, "num_steps", None, steps.micro_batches)


def training_arguments(call: Call, draft: Draft) -> None:
    """``TrainingArguments(fp16=False, bf16=False, max_grad_norm=1.0, ...)``."""
    _training_precision(call, draft)
    if "step.accumulate" not in draft.settings:
        draft.take("step.accumulate", call, "gradient_accumulation_steps", 1, steps.micro_batches)
    if not steps.clips(draft):
        steps.clip(draft, "clip_norm", call, "max_grad_norm", steps.limit, 1.0)


@doubting("policy.level", "policy.dtype")
def _training_precision(call: Call, draft: Draft) -> None:
    fp16 = call.flag("fp16", False)
    bf16 = call.flag("bf16", False) if not fp16 or call.given("bf16") else False
    config = call.parts("deepspeed")
    if config is not None:
        deepspeed.configure(_filled_in(config, call, fp16=fp16, bf16=bf16), draft)
        return
    if call.value("deepspeed", None):
        _tell_of_deepspeed(draft, call.place_of("deepspeed"))
        return
    backends = [call.value(name, "auto") for name in ("half_precision_backend", "fp16_backend")]
    if fp16 and bf16:
        message = "transformers refuses fp16 and bf16 together; the recipe has fp16."
        draft.note(call.place_of("bf16"), message)
    if fp16 and "apex" in backends:
        apex.initialize(call.named("apex.amp.initialize", opt_level="fp16_opt_level"), draft)
        return
    flag = "fp16" if fp16 else "bf16"
    precision(draft, flag if fp16 or bf16 else "no", call.place_of(flag))


def _filled_in(config: Call, call: Call, *, fp16: bool, bf16: bool) -> Call:
    """DeepSpeed's configuration with what transformers puts where it says "auto"."""
    of_trainer = {
        "gradient_clipping": ("max_grad_norm", 1.0),
        "gradient_accumulation_steps": ("gradient_accumulation_steps", 1),
    }
    filled = dict(config.arguments)
    for key, (name, usual) in of_trainer.items():
        if key in filled and filled[key].evaluate() == "auto":
            filled[key] = call.arguments.get(name) or constant(usual, call.place)
    for name, on in (("fp16", fp16), ("bf16", bf16)):
        parts = config.parts(name)
        if parts is not None and parts.value("enabled", False) == "auto":
            switched = {**parts.arguments, "enabled": constant(on, parts.place)}
            filled[name] = replace(filled[name], parts=lambda s=switched: s)  # type: ignore[misc]
    return replace(config, arguments=filled)


_TRAINING = (
    "output_dir fp16 bf16 fp16_opt_level half_precision_backend fp16_backend "
    "gradient_accumulation_steps max_grad_norm deepspeed"
)

DIALECT = Dialect(
    "accelerate",
    {
        "accelerate.Accelerator": (
            "device_placement split_batches mixed_precision gradient_accumulation_steps cpu "
            "dataloader_config deepspeed_plugin fsdp_plugin kwargs_handlers "
            "gradient_accumulation_plugin",
            accelerator,
        ),
        "accelerate.Accelerator.clip_grad_norm_": ("parameters max_norm norm_type", clip_grad_norm),
        "accelerate.Accelerator.clip_grad_value_": ("parameters clip_value", clip_grad_value),
        "accelerate.Accelerator.unscale_gradients": ("optimizer", steps.unscales),
        "accelerate.Accelerator.backward": ("loss", None),
        "accelerate.Accelerator.accumulate": ("", None),
        "accelerate.GradScalerKwargs": (
            "init_scale growth_factor backoff_factor growth_interval enabled", scaler_kwargs,
        ),
        "accelerate.AutocastKwargs": ("enabled cache_enabled", autocast_kwargs),
        "accelerate.GradientAccumulationPlugin": (
            "num_steps adjust_scheduler sync_with_dataloader", accumulation_plugin,
        ),
        "transformers.TrainingArguments": (_TRAINING, training_arguments),
    },
    dict.fromkeys(
        ("transformers.Seq2SeqTrainingArguments", "trl.SFTConfig", "trl.DPOConfig"),
        "transformers.TrainingArguments",
    ),
    finish,
    frozenset({"accelerate.Accelerator", "transformers.TrainingArguments"}),
)  # fmt: skip
