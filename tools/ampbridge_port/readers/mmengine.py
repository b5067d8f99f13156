"""OpenMMLab's ``AmpOptimWrapper``, called, or described by ``dict(type="AmpOptimWrapper", ...)`` in a config.

As in mmengine/optim/optimizer/amp_optimizer_wrapper.py and optimizer_wrapper.py, of October 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ampbridge_port.dialect import Call, Dialect, Draft, NotKnown
from ampbridge_port.readers import clipping, scaling
from ampbridge_port.readers.deepspeed import whole
from ampbridge_port.readers.torch import dtype_name, take_scaler
from ampbridge_port.table import Table


def amp_optim_wrapper(call: Call, draft: Draft) -> None:
    """``AmpOptimWrapper(loss_scale="dynamic", dtype=None, ..., accumulative_counts=1, clip_grad=None)``."""
    draft.set("policy.level", "O1")
    draft.take("policy.dtype", call, "dtype", None, lambda dtype: dtype_name(dtype) or "float16")
    draft.set("policy.lists", "torch")
    draft.comments["policy.level"] = call.name.rpartition(".")[2]
    _scaler(call, draft)
    draft.take("step.accumulate", call, "accumulative_counts", 1, whole)
    _clipping(call, draft)


def _scaler(call: Call, draft: Draft) -> None:
    """ "dynamic"; the arguments of a GradScaler; or a number, to which each update resets the scale."""
    written = call.arguments.get("loss_scale")
    if written is not None and written.parts() is not None:
        settings = Table.of_argument(written)
        take_scaler(settings.call("torch.cuda.amp.GradScaler", settings.entries), draft)
        return
    scaling.like(draft, "torch")
    try:
        scale: Any = scaling.number(call.value("loss_scale", "dynamic"))
    except NotKnown as error:
        draft.unknown["scaler.init_scale"] = draft.unknown["scaler.dynamic"] = error.place
        return
    if scale != "dynamic":
        scaling.fixed(draft, "torch", scale)
        draft.comments["scaler.init_scale"] = f"loss_scale={call.place_of('loss_scale').text}"


def _clipping(call: Call, draft: Draft) -> None:
    if "clip_grad" not in call.arguments:
        return
    clip = call.arguments["clip_grad"]
    if clip.parts() is None:
        clipping.take(draft, "clip_norm", call, "clip_grad", lambda value: value)
        return
    draft.seen[clipping.UNSCALED] = call.place  # it does so by itself
    settings = Table.of_argument(clip)
    described = settings.call("clip_grad", settings.entries)
    if described.arguments.get("type") and described.value("type", "norm") != "norm":
        clipping.by_value(described, draft)
    else:
        clipping.by_norm(described, draft)


_PARAMETERS = ("loss_scale", "dtype", "use_fsdp", "optimizer", "accumulative_counts", "clip_grad")
_ALIASES: Mapping[str, str] = {
    f"mmengine.{module}.AmpOptimWrapper": "mmengine.AmpOptimWrapper"
    for module in ("optim", "optim.optimizer", "optim.optimizer.amp_optimizer_wrapper")
}

DIALECT = Dialect(
    framework="torch",
    signatures={"mmengine.AmpOptimWrapper": _PARAMETERS},
    aliases=_ALIASES,
    handlers={"mmengine.AmpOptimWrapper": amp_optim_wrapper},
    words=("AmpOptimWrapper",),
)
