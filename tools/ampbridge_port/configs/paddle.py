"""Configuration of the Paddle projects: PaddleOCR, PaddleClas, PaddleDetection, PaddleSeg.

A file is read as the calls of ``paddle.amp`` that the project's trainer makes of it. Keys and the
trainer's own defaults, which are not Paddle's:

    PaddleOCR        Global.use_amp, amp_level, amp_dtype, scale_loss, ...: tools/train.py, tools/program.py
    PaddleClas       AMP.use_amp, level, scale_loss, ...: ppcls/engine/engine.py, ppcls/utils/amp.py
    PaddleDetection  amp_level, init_loss_scaling, master_grad, ...: ppdet/engine/trainer.py
    PaddleSeg        nothing of it but clipping; --precision and --amp_level: paddleseg/core/train.py

as of 2025 (PaddleOCR) and October 2024 (the others).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ampbridge_port import choosing
from ampbridge_port.configs.way import Format, Way, has_any, one_way
from ampbridge_port.dialect import Draft
from ampbridge_port.readers import clipping, paddle
from ampbridge_port.readers.deepspeed import whole
from ampbridge_port.reading import Alternative
from ampbridge_port.table import Table, passing

AUTO_CAST, DECORATE, SCALER = "paddle.amp.auto_cast", "paddle.amp.decorate", "paddle.amp.GradScaler"


def call(draft: Draft, name: str, table: Table, keys: Mapping[str, str], **usual: Any) -> None:
    """What ``name(parameter=table[key], ...)`` means; ``usual`` is passed for keys that are missing."""
    paddle.DIALECT.handlers[name](passing(table.call(name, **keys), **usual), draft)


def float32(draft: Draft) -> None:
    """Training without mixed precision."""
    draft.set("policy.level", "O0")


def finish(draft: Draft) -> None:
    """The end of a program that made some of these calls."""
    paddle.DIALECT.finish(draft)


# -- PaddleOCR


def is_ocr(root: Table) -> bool:
    """A ``Global`` section beside an ``Architecture``, or with PaddleOCR's own keys."""
    amp = ("use_amp", "amp_level", "amp_dtype", "amp_custom_black_list", "amp_custom_white_list")
    return "Global" in root.entries and (
        "Architecture" in root.entries or has_any(root.table("Global"), *amp)
    )


def read_ocr(root: Table, draft: Draft) -> None:
    """tools/train.py: a fixed scale of 1.0 and O2, where nothing else is written."""
    section = root.table("Global")
    if not _value(section, "use_amp", False):
        float32(draft)
        _tell_of_switch(section, draft, "Global", _read_ocr_amp)
    else:
        _read_ocr_amp(section, draft)
    _clip(root.table("Optimizer"), draft, joint="clip_norm_global", each="clip_norm")


def _read_ocr_amp(section: Table, draft: Draft) -> None:
    scaler = {
        "init_loss_scaling": "scale_loss",
        "use_dynamic_loss_scaling": "use_dynamic_loss_scaling",
    }
    call(draft, SCALER, section, scaler, init_loss_scaling=1.0, use_dynamic_loss_scaling=False)
    if _value(section, "amp_level", "O2") == "O2":
        decorate = {"level": "amp_level", "dtype": "amp_dtype"}
        call(draft, DECORATE, section, decorate, level="O2", master_weight=True, optimizers=True)
    cast = {
        "level": "amp_level",
        "dtype": "amp_dtype",
        "custom_black_list": "amp_custom_black_list",
        "custom_white_list": "amp_custom_white_list",
    }
    call(draft, AUTO_CAST, section, cast, level="O2", dtype="float16")
    finish(draft)


# -- PaddleClas


def is_clas(root: Table) -> bool:
    """An ``AMP`` section with PaddleClas' own keys, or an ``Arch`` beside a ``Global`` one."""
    own = ("use_amp", "level", "scale_loss", "use_dynamic_loss_scaling", "use_fp16_test")
    return has_any(root.table("AMP"), *own) or {"Global", "Arch"} <= root.entries.keys()


def read_clas(root: Table, draft: Draft) -> None:
    """ppcls/engine/engine.py: an ``AMP`` section switches itself on; a fixed scale of 1.0, and O1."""
    section = root.table("AMP")
    if not section.entries or not _value(section, "use_amp", True):
        float32(draft)
        _tell_of_switch(section, draft, "AMP", _read_clas_amp)
    else:
        _read_clas_amp(section, draft)
    accumulation = root.table("Global").call("PaddleClas", ["update_freq"])
    draft.take("step.accumulate", accumulation, "update_freq", 1, whole)
    for section in _optimizers(root):
        _clip(section, draft, joint="", each="clip_norm")


def _optimizers(root: Table) -> Sequence[Table]:
    """``Optimizer: {...}``, or ``Optimizer: [{Momentum: {scope: all, ...}}]`` for parts of a model."""
    written = root.get_raw("Optimizer")
    if not isinstance(written, list):
        return [root.table("Optimizer")]
    parts = [each for each in written if isinstance(each, Table)]
    return [part.table(name) for part in parts for name in part.entries]


def _read_clas_amp(section: Table, draft: Draft) -> None:
    level = _value(section, "level", "O1")
    if level not in ("O1", "O2", None):
        message = f"PaddleClas takes O1 for the level {level!r}."
        draft.find("ignored", section.place_of("level"), message)
        section = section.with_value("level", "O1")
    scaler = {
        "init_loss_scaling": "scale_loss",
        "use_dynamic_loss_scaling": "use_dynamic_loss_scaling",
    }
    call(draft, SCALER, section, scaler, init_loss_scaling=1.0, use_dynamic_loss_scaling=False)
    if level == "O2":
        call(draft, DECORATE, section, {"level": "level"}, save_dtype="float32", optimizers=True)
        if "use_promote" in section.entries:
            message = "PaddleClas passes use_promote on under Paddle 2.5 alone."
            draft.find("ignored", section.place_of("use_promote"), message)
    call(draft, AUTO_CAST, section, {"level": "level"}, level="O1")
    finish(draft)


# -- PaddleDetection

_DETECTION_KEYS: Mapping[str, type] = {
    "amp": bool,
    "amp_level": str,
    "master_grad": bool,
    "init_loss_scaling": int,
    "custom_black_list": list,
}


def is_detection(root: Table) -> bool:
    """An ``architecture`` with its trainer's sections, its trainer's keys, or ``_BASE_``."""
    sections = ("TrainReader", "TrainDataset", "OptimizerBuilder", "LearningRate")
    whole = "architecture" in root.entries and has_any(root, *sections)
    keyed = any(isinstance(root.get_raw(key), kind) for key, kind in _DETECTION_KEYS.items())
    return whole or keyed or "_BASE_" in root.entries


def detection_ways(root: Table) -> Sequence[Way]:
    """tools/train.py: ``--amp`` decides, and overwrites what the file says of it."""
    return [
        Way(("train.py --amp",), partial(_read_detection, root, True)),
        Way(("train.py without --amp",), partial(_read_detection, root, False)),
    ]


def _read_detection(root: Table, amp: bool, draft: Draft) -> None:
    if "amp" in root.entries:
        draft.find(
            "ignored",
            root.place_of("amp"),
            "tools/train.py overwrites amp by its flag --amp, which is off where it is not given.",
            "python tools/train.py --amp -c FILE.yml",
        )
    if amp:
        _read_detection_amp(root, draft)
    else:
        float32(draft)
    _clip(
        root.table("OptimizerBuilder"), draft, joint="clip_grad_by_norm", value="clip_grad_by_value"
    )
    if "_BASE_" in root.entries:
        draft.find(
            "note",
            root.place_of("_BASE_"),
            "The settings of these files also apply unless this file overrides them; they are not read here.",
            "ampbridge port on the file where it stands in its repository.",
        )


def _read_detection_amp(root: Table, draft: Draft) -> None:
    call(draft, SCALER, root, {"init_loss_scaling": "init_loss_scaling"}, init_loss_scaling=1024.0)
    if _value(root, "amp_level", "O1") == "O2":
        call(
            draft,
            DECORATE,
            root,
            {"level": "amp_level", "master_grad": "master_grad"},
            optimizers=True,
        )
        if _value(root, "master_grad", False):
            message = "PaddleDetection passes master_grad on under Paddle 2.5 alone."
            draft.find("note", root.place_of("master_grad"), message)
    elif _value(root, "master_grad", False):
        message = "master_grad has no effect below amp_level O2."
        draft.find("ignored", root.place_of("master_grad"), message)
    cast = {
        "level": "amp_level",
        "custom_white_list": "custom_white_list",
        "custom_black_list": "custom_black_list",
    }
    call(draft, AUTO_CAST, root, cast, level="O1")
    finish(draft)


# -- PaddleSeg

SEG_WHITE = ["elementwise_add", "batch_norm", "sync_batch_norm"]
SEG_BLACK = ["bilinear_interp_v2"]


def is_seg(root: Table) -> bool:
    """What PaddleSeg builds a training from: ``iters`` are its own, and ``_base_`` in small letters."""
    return "_base_" in root.entries or (
        "iters" in root.entries and has_any(root, "train_dataset", "model")
    )


def seg_ways(root: Table) -> Sequence[Way]:
    """tools/train.py: ``--precision`` and ``--amp_level`` decide; the file says nothing of it."""
    return [
        Way(("train.py --precision fp16",), partial(_read_seg, root, "O1")),
        Way(("train.py --precision fp16 --amp_level O2",), partial(_read_seg, root, "O2")),
        Way(("train.py --precision fp32",), partial(_read_seg, root, "O0")),
    ]


def _read_seg(root: Table, level: str, draft: Draft) -> None:
    if level == "O0":
        float32(draft)
    else:
        nothing = Table({}, root.place)
        call(draft, SCALER, nothing, {}, init_loss_scaling=1024)
        if level == "O2":
            call(draft, DECORATE, nothing, {}, level="O2", save_dtype="float32", optimizers=True)
        lists = {"custom_white_list": SEG_WHITE, "custom_black_list": SEG_BLACK}
        call(draft, AUTO_CAST, nothing, {}, level=level, enable=True, **lists)
        finish(draft)
    _seg_clip(root.table("optimizer").table("grad_clip_cfg"), draft)


def _seg_clip(section: Table, draft: Draft) -> None:
    """``{name: ClipGradByGlobalNorm, clip_norm: 1.0}``, a class of ``paddle.nn``."""
    name = _value(section, "name", "ClipGradByGlobalNorm")
    kind = f"paddle.nn.{name}"
    if section.entries and kind in paddle.CLIPS:
        paddle.clip_object(section.call(kind, ["clip_norm", "max", "min"]), draft)


# -- what they share


def _value(section: Table, key: str, usual: Any) -> Any:
    """What is written under a key, or what the project takes where nothing is."""
    return section.get_raw(key) if key in section.entries else usual


def _tell_of_switch(
    section: Table, draft: Draft, name: str, read: Callable[[Table, Draft], None]
) -> None:
    """What a training would be whose command line switches on what the file switches off."""
    if "use_amp" not in section.entries:
        return
    on = Draft()
    read(section, on)
    switched = choosing.in_short(Alternative((), on.settings, on.unknown, {}))
    message = f"With -o {name}.use_amp=True on its command line, the training is {switched}."
    hint = "use_amp: True in the file, then port it again."
    draft.find("note", section.place_of("use_amp"), message, hint)


def _clip(section: Table, draft: Draft, *, joint: str, each: str = "", value: str = "") -> None:
    """Clipping, by the keys that say it: by the joint norm, each gradient's norm, or each value."""
    clip = section.call("paddle.nn", [key for key in (joint, each, value) if key])
    for key, name in ((each, "clip_each_norm"), (value, "clip_value"), (joint, "clip_norm")):
        if key and section.get_raw(key) is not None:
            clipping.take(draft, name, clip, key)
            return


FORMATS = (
    Format("paddle", is_clas, one_way(read_clas)),
    Format("paddle", is_ocr, one_way(read_ocr)),
    Format("paddle", is_detection, detection_ways),
    Format("paddle", is_seg, seg_ways),
)
