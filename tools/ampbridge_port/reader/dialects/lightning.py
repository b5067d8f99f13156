"""Lightning: ``Trainer(precision=...)``, ``Fabric(precision=...)`` and their plugins.

Precisions and defaults are those of Lightning 2.6: lightning/fabric/connector.py,
lightning/fabric/plugins/precision/{amp,half}.py, lightning/pytorch/trainer/trainer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ampbridge_port.reader.dialects import apex, deepspeed, steps
from ampbridge_port.reader.dialects.calls import (
    Argument,
    Call,
    Dialect,
    Draft,
    NotKnown,
    Object,
    constant,
)
from ampbridge_port.reader.dialects.torch import pure, scaler_kwargs
from ampbridge_port.reading import Place

SHORT: Mapping[str, str] = {
    "64": "64-true",
    "32": "32-true",
    "16": "16-mixed",
    "bf16": "bf16-mixed",
}
MIXED: Mapping[str, str] = {"16-mixed": "float16", "bf16-mixed": "bfloat16"}
PURE: Mapping[str, str] = {"16-true": "float16", "bf16-true": "bfloat16"}
STAGES: Mapping[str, int] = {
    "deepspeed": 2,
    **{f"deepspeed_stage_{n}{o}": n for n in (1, 2, 3) for o in ("", "_offload")},
    "deepspeed_stage_3_offload_nvme": 3,
}
"""What DeepSpeedStrategy(stage=...) writes into DeepSpeed's configuration."""


def trainer(call: Call, draft: Draft) -> None:
    """``Trainer(precision="32-true", accumulate_grad_batches=1, gradient_clip_val=None, ...)``."""
    _precision(call, draft)
    try:
        by_epoch = isinstance(call.value("accumulate_grad_batches", 1), Mapping)
    except NotKnown:
        by_epoch = False
    if by_epoch:
        accumulation_by_epoch(call, draft)
    else:
        draft.take("step.accumulate", call, "accumulate_grad_batches", 1, steps.micro_batches)
    clip(call, draft)


def clip(call: Call, draft: Draft) -> None:
    """``gradient_clip_val``, with ``gradient_clip_algorithm="norm"`` or ``"value"``."""
    try:
        by_value = str(call.value("gradient_clip_algorithm", None)).rpartition(".")[2] == "value"
    except NotKnown as error:
        steps.doubt_clip(draft, error.place)
        return
    steps.clip(
        draft, "clip_value" if by_value else "clip_norm", call, "gradient_clip_val", steps.limit
    )


def _precision(call: Call, draft: Draft) -> None:
    try:
        written = call.value("precision", None)
        if isinstance(written, bool):
            raise NotKnown(call.place_of("precision"))  # of ``precision or ...`` the truth alone
        if written is None and "policy.level" in draft.settings:
            return  # a plugin has said it
        if written is None and call.value("plugins", None):
            raise NotKnown(call.place_of("plugins"))  # a plugin that says it otherwise
        backend = call.value("amp_backend", "native")
    except NotKnown as error:
        draft.doubt(error.place, "policy.level", "policy.dtype")
        return
    name = str(written if written is not None else "32-true")
    precision, place = SHORT.get(name, name), call.place_of("precision")
    stage = STAGES.get(_word(call, "strategy"))
    if backend == "apex" and precision == "16-mixed":
        apex.initialize(
            call.named("apex.amp.initialize", opt_level="amp_level").passing(opt_level="O2"), draft
        )
    elif stage is not None and precision not in ("32-true", "64-true"):
        _deepspeed(call, draft, precision, stage)
    elif _word(call, "accelerator") == "cpu" and precision == "16-mixed":
        draft.find("ignored", place, "Lightning takes bf16-mixed for 16-mixed on a CPU.")
        _mixed(draft, "bfloat16", place)
    else:
        _take(call, draft, precision, place)
        if "DeepSpeed" in call.place_of("strategy").text:
            message = "DeepSpeed casts the model and has a scaler of its own, by its own settings."
            draft.find(
                "lost",
                call.place_of("strategy"),
                message,
                "read its configuration: ampbridge port ds_config.json",
            )


def _word(call: Call, argument: str) -> str:
    """An argument that is a word; "" for an object, and for what cannot be known."""
    try:
        value = call.value(argument, None)
    except NotKnown:
        return ""
    return value if isinstance(value, str) else ""


def _take(call: Call, draft: Draft, precision: str, place: Place) -> None:
    if precision in MIXED:
        _mixed(draft, MIXED[precision], place)
    elif precision in PURE:
        pure(draft, call, PURE[precision])
        if precision == "16-true":
            steps.never(draft)
    elif precision in ("32-true", "64-true"):
        draft.set("policy.level", "O0")
        if precision == "64-true":
            draft.find("lost", place, "Everything runs in float64; O0 leaves a model as it is.")
    else:
        draft.doubt(place, "policy.level")
        message = f"precision={precision!r} computes in 8 bits, which a recipe cannot say."
        draft.find(
            "lost", place, message, "the nearest is policy.level=O1 with policy.dtype=bfloat16."
        )


def _mixed(draft: Draft, dtype: str, place: Place) -> None:
    """``torch.autocast``, with torch's GradScaler in float16."""
    for key, value in (("level", "O1"), ("dtype", dtype), ("lists", "torch")):
        draft.set(f"policy.{key}", value)
    draft.comments["policy.dtype"] = f"precision={place.text}"
    if dtype == "float16" and not draft.says("scaler."):
        steps.like(draft, "torch")


def _deepspeed(call: Call, draft: Draft, precision: str, stage: int) -> None:
    """DeepSpeed casts the model; its scaler is that of DeepSpeed's defaults."""
    place = call.place_of("strategy")
    sections = {
        "bf16" if precision.startswith("bf16") else "fp16": {"enabled": True},
        "zero_optimization": {"stage": stage},
    }
    arguments = {
        name: Argument(place, lambda: None, None, partial(_constants, values, place))
        for name, values in sections.items()
    }
    config = replace(
        call,
        name="deepspeed",
        place=place,
        arguments={**arguments, "gradient_clipping": constant(0.0, place)},
    )
    deepspeed.configure(config, draft)


def _constants(values: Any, place: Place) -> Mapping[str, Argument]:
    return {key: constant(each, place) for key, each in values.items()}


def accumulation_by_epoch(call: Call, draft: Draft) -> None:
    """``GradientAccumulationScheduler({0: 1, 4: 8})``."""
    draft.find("lost", call.place, "Accumulation changes from epoch to epoch; a recipe's does not.")


def mixed_plugin(call: Call, draft: Draft) -> None:
    """``MixedPrecision("16-mixed", "cuda", scaler=None)``."""
    _precision(call, draft)
    try:
        scaler = call.value("scaler", None)
    except NotKnown as error:
        draft.doubt(error.place, "scaler.init_scale")
        return
    if isinstance(scaler, Object):
        scaler_kwargs(scaler.call, draft)


def clip_gradients(call: Call, draft: Draft) -> None:
    """``fabric.clip_gradients(module, optimizer, clip_val=None, max_norm=None, norm_type=2.0)``."""
    if "clip_val" in call.arguments:
        steps.clip(draft, "clip_value", call, "clip_val")
    else:
        steps.clip_by_norm(call, draft)


_ROOTS, _FABRIC_ROOTS = (
    ("lightning.pytorch", "pytorch_lightning"),
    ("lightning.fabric", "lightning_fabric"),
)
_CLIP, _TRAINER, _FABRIC = (
    "lightning.pytorch.LightningModule.clip_gradients",
    "lightning.pytorch.Trainer",
    "lightning.fabric.Fabric",
)
_SCHEDULER = "lightning.pytorch.callbacks.GradientAccumulationScheduler"


def _aliases() -> dict[str, str]:
    """The packages that Lightning has been shipped as, and the modules of its classes."""
    found = {
        "lightning.Trainer": _TRAINER,
        "lightning.LightningModule.clip_gradients": _CLIP,
        **dict.fromkeys(
            (
                "lightning.Fabric",
                "lightning_fabric.Fabric",
                "lightning_fabric.fabric.Fabric",
                "lightning.fabric.fabric.Fabric",
            ),
            _FABRIC,
        ),
        "lightning_fabric.Fabric.clip_gradients": f"{_FABRIC}.clip_gradients",
    }
    for root in _ROOTS:
        found |= {
            f"{root}.{module}": _TRAINER
            for module in ("Trainer", "trainer.Trainer", "trainer.trainer.Trainer")
        }
        found |= {
            f"{root}.{module}.clip_gradients": _CLIP
            for module in ("LightningModule", "core.LightningModule", "core.module.LightningModule")
        }
        found[f"{root}.callbacks.GradientAccumulationScheduler"] = _SCHEDULER
    for root in (*_ROOTS, *_FABRIC_ROOTS):
        for plugin in ("MixedPrecision", "MixedPrecisionPlugin", "NativeMixedPrecisionPlugin"):
            for module in ("plugins", "plugins.precision", "plugins.precision.amp"):
                found[f"{root}.{module}.{plugin}"] = "lightning.pytorch.plugins.MixedPrecision"
    return {alias: name for alias, name in found.items() if alias != name}


TRAINER = (
    "accelerator strategy devices num_nodes precision accumulate_grad_batches gradient_clip_val "
    "gradient_clip_algorithm plugins amp_backend amp_level"
)

DIALECT = Dialect(
    "lightning",
    {
        _TRAINER: (TRAINER, trainer),
        _CLIP: ("optimizer gradient_clip_val gradient_clip_algorithm", clip),
        _FABRIC: ("accelerator strategy devices num_nodes precision plugins", _precision),
        f"{_FABRIC}.clip_gradients": (
            "module optimizer clip_val max_norm norm_type error_if_nonfinite",
            clip_gradients,
        ),
        f"{_FABRIC}.backward": ("tensor", None),
        "lightning.pytorch.plugins.MixedPrecision": ("precision device scaler", mixed_plugin),
        _SCHEDULER: ("scheduling", accumulation_by_epoch),
    },
    _aliases(),
    any_keyword=frozenset({_TRAINER, _FABRIC}),
)
