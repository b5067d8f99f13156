"""Lightning: ``Trainer(precision=...)``, ``Fabric(precision=...)`` and their plugins.

Precisions and defaults are those of Lightning 2.6: lightning/fabric/connector.py,
lightning/fabric/plugins/precision/{amp,half}.py, lightning/pytorch/trainer/trainer.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from ampbridge_port.dialect import Call, Dialect, Draft, NotKnown, Object
from ampbridge_port.readers import apex, clipping, deepspeed, scaling
from ampbridge_port.readers.deepspeed import whole
from ampbridge_port.readers.torch import pure, take_scaler
from ampbridge_port.reading import Place
from ampbridge_port.table import Table, passing

ALIASES: Mapping[str, str] = {
    "64": "64-true",
    "32": "32-true",
    "16": "16-mixed",
    "bf16": "bf16-mixed",
}
MIXED: Mapping[str, str] = {"16-mixed": "float16", "bf16-mixed": "bfloat16"}
PURE: Mapping[str, str] = {"16-true": "float16", "bf16-true": "bfloat16"}

# DeepSpeedStrategy(stage=2) writes these into DeepSpeed's configuration.
DEEPSPEED_STAGES: Mapping[str, int] = {
    "deepspeed": 2,
    "deepspeed_stage_1": 1,
    "deepspeed_stage_1_offload": 1,
    "deepspeed_stage_2": 2,
    "deepspeed_stage_2_offload": 2,
    "deepspeed_stage_3": 3,
    "deepspeed_stage_3_offload": 3,
    "deepspeed_stage_3_offload_nvme": 3,
}


def trainer(call: Call, draft: Draft) -> None:
    """``Trainer(precision="32-true", accumulate_grad_batches=1, gradient_clip_val=None, ...)``."""
    _precision(call, draft)
    _accumulate(call, draft, "accumulate_grad_batches")
    clip(call, draft)


def clip(call: Call, draft: Draft) -> None:
    """``gradient_clip_val``, with ``gradient_clip_algorithm="norm"`` or ``"value"``."""
    try:
        by_value = str(call.value("gradient_clip_algorithm", None)).rpartition(".")[2] == "value"
    except NotKnown as error:
        clipping.unknown(draft, error.place)
        return
    name = "clip_value" if by_value else "clip_norm"
    clipping.take(draft, name, call, "gradient_clip_val", clipping.limit)


def fabric(call: Call, draft: Draft) -> None:
    """``Fabric(precision="32-true", ...)``."""
    _precision(call, draft)


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
        draft.unknown["policy.level"] = draft.unknown["policy.dtype"] = error.place
        return
    name = str(written if written is not None else "32-true")
    precision = ALIASES.get(name, name)
    place = call.place_of("precision")
    stage = DEEPSPEED_STAGES.get(_word(call, "strategy"))
    if backend == "apex":
        _apex(call, draft, precision)
    elif stage is not None and precision not in ("32-true", "64-true"):
        _deepspeed(call, draft, precision, stage)
    elif _word(call, "accelerator") == "cpu" and precision == "16-mixed":
        draft.find("ignored", place, "Lightning takes bf16-mixed for 16-mixed on a CPU.")
        _mixed(draft, "bfloat16", place)
    else:
        _take(call, draft, precision, place)
        _tell_of_strategy(call, draft)


def _word(call: Call, argument: str) -> str:
    """An argument that is a word; "" for an object, and for what cannot be known."""
    try:
        value = call.value(argument, None)
    except NotKnown:
        return ""
    return value if isinstance(value, str) else ""


def _tell_of_strategy(call: Call, draft: Draft) -> None:
    if "DeepSpeed" in call.place_of("strategy").text:
        draft.find(
            "lost",
            call.place_of("strategy"),
            "DeepSpeed casts the model and has a scaler of its own, by its own settings.",
            "read its configuration: ampbridge port ds_config.json",
        )


def _take(call: Call, draft: Draft, precision: str, place: Place) -> None:
    if precision in MIXED:
        _mixed(draft, MIXED[precision], place)
    elif precision in PURE:
        pure(draft, call, PURE[precision])
        if precision == "16-true":
            scaling.never(draft)
    elif precision == "32-true":
        draft.set("policy.level", "O0")
    elif precision == "64-true":
        draft.set("policy.level", "O0")
        draft.find("lost", place, "Everything runs in float64; O0 leaves a model as it is.")
    else:
        draft.unknown["policy.level"] = place
        draft.find(
            "lost",
            place,
            f"precision={precision!r} computes in 8 bits, which a recipe cannot say.",
            "the nearest is policy.level=O1 with policy.dtype=bfloat16.",
        )


def _mixed(draft: Draft, dtype: str, place: Place) -> None:
    """``torch.autocast``, with torch's GradScaler in float16."""
    draft.set("policy.level", "O1")
    draft.set("policy.dtype", dtype)
    draft.set("policy.lists", "torch")
    draft.comments["policy.dtype"] = f"precision={place.text}"
    if dtype == "float16":
        scaling.unless_known(draft, "torch")


def _apex(call: Call, draft: Draft, precision: str) -> None:
    """``amp_backend="apex", amp_level="O2"``, up to Lightning 1.9."""
    if precision == "16-mixed":
        level = call.arguments.get("amp_level")
        arguments = {} if level is None else {"opt_level": level}
        initialize = Call("apex.amp.initialize", call.place, arguments)
        apex.initialize(passing(initialize, opt_level="O2"), draft)
    else:
        _take(call, draft, precision, call.place_of("precision"))


def _deepspeed(call: Call, draft: Draft, precision: str, stage: int) -> None:
    """DeepSpeed casts the model; its scaler is that of DeepSpeed's defaults."""
    mode = "bf16" if precision.startswith("bf16") else "fp16"
    config = {
        mode: {"enabled": True},
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 0.0,
    }
    deepspeed.configure(Table.of(config, call.place_of("strategy")), draft)


def _accumulate(call: Call, draft: Draft, argument: str) -> None:
    try:
        by_epoch = isinstance(call.value(argument, 1), Mapping)
    except NotKnown:
        by_epoch = False
    if by_epoch:
        accumulation_by_epoch(call, draft)
    else:
        draft.take("step.accumulate", call, argument, 1, whole)


def accumulation_by_epoch(call: Call, draft: Draft) -> None:
    """``GradientAccumulationScheduler({0: 1, 4: 8})``."""
    draft.find("lost", call.place, "Accumulation changes from epoch to epoch; a recipe's does not.")


def mixed_plugin(call: Call, draft: Draft) -> None:
    """``MixedPrecision("16-mixed", "cuda", scaler=None)``."""
    _precision(call, draft)
    try:
        scaler = call.value("scaler", None)
    except NotKnown as error:
        draft.unknown["scaler.init_scale"] = error.place
        return
    if isinstance(scaler, Object):
        take_scaler(scaler.call, draft)


def clip_gradients(call: Call, draft: Draft) -> None:
    """``fabric.clip_gradients(module, optimizer, clip_val=None, max_norm=None, norm_type=2.0)``."""
    if "clip_val" in call.arguments:
        clipping.take(draft, "clip_value", call, "clip_val")
    else:
        clipping.by_norm(call, draft)


_ROOTS = ("lightning.pytorch", "pytorch_lightning")
_FABRIC_ROOTS = ("lightning.fabric", "lightning_fabric")
_PLUGINS = ("MixedPrecision", "MixedPrecisionPlugin", "NativeMixedPrecisionPlugin")


_CLIP = "lightning.pytorch.LightningModule.clip_gradients"


def _aliases() -> dict[str, str]:
    """The packages that Lightning has been shipped as, and the modules of its classes."""
    found = {
        "lightning.Trainer": "lightning.pytorch.Trainer",
        "lightning.Fabric": "lightning.fabric.Fabric",
        "lightning.LightningModule.clip_gradients": _CLIP,
        "lightning_fabric.Fabric": "lightning.fabric.Fabric",
        "lightning_fabric.fabric.Fabric": "lightning.fabric.Fabric",
        "lightning.fabric.fabric.Fabric": "lightning.fabric.Fabric",
        "lightning_fabric.Fabric.clip_gradients": "lightning.fabric.Fabric.clip_gradients",
    }
    for root in _ROOTS:
        found[f"{root}.Trainer"] = "lightning.pytorch.Trainer"
        found[f"{root}.trainer.Trainer"] = "lightning.pytorch.Trainer"
        found[f"{root}.trainer.trainer.Trainer"] = "lightning.pytorch.Trainer"
        for module in (root, f"{root}.core", f"{root}.core.module"):
            found[f"{module}.LightningModule.clip_gradients"] = _CLIP
        found[f"{root}.callbacks.GradientAccumulationScheduler"] = (
            "lightning.pytorch.callbacks.GradientAccumulationScheduler"
        )
    for root in (*_ROOTS, *_FABRIC_ROOTS):
        for plugin in _PLUGINS:
            for module in ("plugins", "plugins.precision", "plugins.precision.amp"):
                found[f"{root}.{module}.{plugin}"] = "lightning.pytorch.plugins.MixedPrecision"
    return {alias: name for alias, name in found.items() if alias != name}


DIALECT = Dialect(
    framework="lightning",
    signatures={
        "lightning.pytorch.Trainer": (
            "accelerator",
            "strategy",
            "devices",
            "num_nodes",
            "precision",
            "accumulate_grad_batches",
            "gradient_clip_val",
            "gradient_clip_algorithm",
            "plugins",
            "amp_backend",
            "amp_level",
        ),
        _CLIP: ("optimizer", "gradient_clip_val", "gradient_clip_algorithm"),
        "lightning.fabric.Fabric": (
            "accelerator",
            "strategy",
            "devices",
            "num_nodes",
            "precision",
            "plugins",
        ),
        "lightning.fabric.Fabric.clip_gradients": (
            "module",
            "optimizer",
            "clip_val",
            "max_norm",
            "norm_type",
            "error_if_nonfinite",
        ),
        "lightning.fabric.Fabric.backward": ("tensor",),
        "lightning.pytorch.plugins.MixedPrecision": ("precision", "device", "scaler"),
        "lightning.pytorch.callbacks.GradientAccumulationScheduler": ("scheduling",),
    },
    aliases=_aliases(),
    handlers={
        "lightning.pytorch.Trainer": trainer,
        _CLIP: clip,
        "lightning.fabric.Fabric": fabric,
        "lightning.fabric.Fabric.clip_gradients": clip_gradients,
        "lightning.pytorch.plugins.MixedPrecision": mixed_plugin,
        "lightning.pytorch.callbacks.GradientAccumulationScheduler": accumulation_by_epoch,
    },
    words=("lightning",),
)
