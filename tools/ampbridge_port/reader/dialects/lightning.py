"""Lightning: ``Trainer(precision=...)``, ``Fabric(precision=...)`` and their plugins.

Precisions and defaults are those of Lightning 2.6: lightning/fabric/connector.py,
lightning/fabric/plugins/precision/{amp,half}.py, lightning/pytorch/trainer/trainer.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from ampbridge_port.reader.dialects import apex, steps
from ampbridge_port.reader.dialects.calls import Call, Dialect, Draft, NotKnown, Object, doubting
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


def trainer(call: Call, draft: Draft) -> None:
    """``Trainer(precision="32-true", accumulate_grad_batches=1, gradient_clip_val=None, ...)``."""
    _precision(call, draft)
    if isinstance(call.known("accumulate_grad_batches", 1), Mapping):
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
    name = "clip_value" if by_value else "clip_norm"
    steps.clip(draft, name, call, "gradient_clip_val", steps.limit)


@doubting("policy.level", "policy.dtype")
def _precision(call: Call, draft: Draft) -> None:
    written = call.value("precision", None)
    if isinstance(written, bool):
        raise NotKnown(call.place_of("precision"))  # of ``precision or ...`` the truth alone
    if written is None and "policy.level" in draft.settings:
        return  # a plugin has said it
    if written is None and call.value("plugins", None):
        raise NotKnown(call.place_of("plugins"))  # a plugin that says it otherwise
    backend = call.value("amp_backend", "native")
    name = str(written if written is not None else "32-true")
    precision, place = SHORT.get(name, name), call.place_of("precision")
    strategy = call.place_of("strategy")
    if backend == "apex" and precision == "16-mixed":
        named = call.named("apex.amp.initialize", opt_level="amp_level")
        apex.initialize(named.passing(opt_level="O2"), draft)
    elif "deepspeed" in strategy.text.lower() and precision not in ("32-true", "64-true"):
        draft.doubt(strategy, "policy.level")
        message = "DeepSpeed casts the model and has a scaler of its own, by its own settings."
        hint = "read its configuration: ampbridge port ds_config.json"
        draft.note(strategy, message, hint)
    elif call.known("accelerator", None) == "cpu" and precision == "16-mixed":
        draft.ignored(place, "Lightning takes bf16-mixed for 16-mixed on a CPU.")
        _mixed(draft, "bfloat16", place)
    else:
        _take(call, draft, precision, place)


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
            draft.lost(place, "Everything runs in float64; O0 leaves a model as it is.")
    else:
        draft.doubt(place, "policy.level")
        message = f"precision={precision!r} computes in 8 bits, which a recipe cannot say."
        draft.lost(place, message, "the nearest is policy.level=O1 with policy.dtype=bfloat16.")


def _mixed(draft: Draft, dtype: str, place: Place) -> None:
    """``torch.autocast``, with torch's GradScaler in float16."""
    draft.set_policy("O1", dtype, "torch")
    draft.comments["policy.dtype"] = f"precision={place.text}"
    if dtype == "float16" and not draft.says("scaler."):
        steps.like(draft, "torch")


def accumulation_by_epoch(call: Call, draft: Draft) -> None:
    """``GradientAccumulationScheduler({0: 1, 4: 8})``."""
    draft.lost(call.place, "Accumulation changes from epoch to epoch; a recipe's does not.")


@doubting("scaler.init_scale")
def mixed_plugin(call: Call, draft: Draft) -> None:
    """``MixedPrecision("16-mixed", "cuda", scaler=None)``."""
    _precision(call, draft)
    scaler = call.value("scaler", None)
    if isinstance(scaler, Object):
        scaler_kwargs(scaler.call, draft)


def clip_gradients(call: Call, draft: Draft) -> None:
    """``fabric.clip_gradients(module, optimizer, clip_val=None, max_norm=None, norm_type=2.0)``."""
    if "clip_val" in call.arguments:
        steps.clip(draft, "clip_value", call, "clip_val")
    else:
        steps.clip_by_norm(call, draft)


_CLIP = "lightning.pytorch.LightningModule.clip_gradients"
_TRAINER, _FABRIC = "lightning.pytorch.Trainer", "lightning.fabric.Fabric"
_PLUGIN = "lightning.pytorch.plugins.MixedPrecision"
TRAINER = (
    "accelerator strategy devices num_nodes precision accumulate_grad_batches gradient_clip_val "
    "gradient_clip_algorithm plugins amp_backend amp_level"
)

# fmt: off
DIALECT = Dialect(
    "lightning",
    {
        _TRAINER: (TRAINER, trainer),
        _CLIP: ("optimizer gradient_clip_val gradient_clip_algorithm", clip),
        _FABRIC: ("accelerator strategy devices num_nodes precision plugins", _precision),
        f"{_FABRIC}.clip_gradients": (
            "module optimizer clip_val max_norm norm_type error_if_nonfinite", clip_gradients,
        ),
        f"{_FABRIC}.backward": ("tensor", None),
        _PLUGIN: ("precision device scaler", mixed_plugin),
        "lightning.pytorch.callbacks.GradientAccumulationScheduler": ("scheduling", accumulation_by_epoch),
    },
    {
        "lightning.Trainer": _TRAINER,
        "lightning.LightningModule.clip_gradients": _CLIP,
        "lightning.Fabric": _FABRIC,
        "lightning.fabric.plugins.MixedPrecision": _PLUGIN,
        **{
            f"lightning.{package}.plugins.{older}MixedPrecisionPlugin": _PLUGIN
            for package in ("pytorch", "fabric") for older in ("", "Native")
        },
    },
    any_keyword=frozenset({_TRAINER, _FABRIC}),
    packages={"pytorch_lightning": "lightning.pytorch", "lightning_fabric": "lightning.fabric"},
)
# fmt: on
