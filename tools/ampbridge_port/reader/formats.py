"""Configuration files by themselves: what the program of their project makes of them.

A file is read as the calls that the program makes of it, so that a key means what the dialect says that
the argument means. Keys and the trainers' own defaults, which are not their library's:

    PaddleOCR        Global.use_amp, amp_level, amp_dtype, scale_loss, ...: tools/train.py, tools/program.py
    PaddleClas       AMP.use_amp, level, scale_loss, ...: ppcls/engine/engine.py, ppcls/utils/amp.py
    PaddleDetection  amp_level, init_loss_scaling, master_grad, ...: ppdet/engine/trainer.py
    PaddleSeg        nothing of it but clipping; --precision and --amp_level: paddleseg/core/train.py

as of 2025 (PaddleOCR) and October 2024 (the others); DeepSpeed's JSON; what ``accelerate config`` writes
(accelerate/commands/config/config_args.py 1.15); Lightning's ``trainer`` section; ``TrainingArguments``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from ampbridge_port import choosing
from ampbridge_port.reader import settings
from ampbridge_port.reader.dialects import deepspeed, hugging_face, lightning, paddle, steps, torch
from ampbridge_port.reader.dialects.calls import (
    Argument,
    Call,
    Draft,
    NotKnown,
    constant,
    entry,
    of_table,
)
from ampbridge_port.reader.settings import Table, is_filled_in
from ampbridge_port.reading import Alternative, Finding, Place, Reading

Way = tuple[tuple[str, ...], Callable[[Draft], None]]
"""One way in which a file may be used: under which conditions, and what it then means."""


class Format(NamedTuple):
    """A kind of file: how it is recognised, and what it stands for."""

    framework: str
    recognises: Callable[[Table], bool]
    ways: Callable[[Table], Sequence[Way]]


def _has(table: Table, *keys: str) -> bool:
    return not table.keys().isdisjoint(keys)


def _one(read: Callable[[Table, Draft], None]) -> Callable[[Table], Sequence[Way]]:
    return lambda table: [((), partial(read, table))]


# -- projects of Paddle


def _call(draft: Draft, name: str, table: Table, keys: str, **usual: Any) -> None:
    """A call of a trainer: ``parameter=key`` of the file, or one name for both, and what it lacks."""
    handler = paddle.CALLS[f"paddle.amp.{name}"][1]
    assert handler is not None
    pairs = (each.partition("=") for each in keys.split())
    parameters = {parameter: key or parameter for parameter, _, key in pairs}
    handler(of_table(table, f"paddle.amp.{name}", **parameters).passing(**usual), draft)


def _scaled(draft: Draft, section: Table) -> None:
    """A fixed scale of 1.0, where nothing else is written."""
    keys = "init_loss_scaling=scale_loss use_dynamic_loss_scaling"
    fixed = {"init_loss_scaling": 1.0, "use_dynamic_loss_scaling": False}
    _call(draft, "GradScaler", section, keys, **fixed)


def _ocr(root: Table, draft: Draft) -> None:
    """tools/train.py: a fixed scale of 1.0 and O2, where nothing else is written."""
    section = root.table("Global")
    _switched(section, draft, "Global", section.get("use_amp", False), _ocr_amp)
    _clip(root.table("Optimizer"), draft, joint="clip_norm_global", each="clip_norm")


def _ocr_amp(section: Table, draft: Draft) -> None:
    level = "level=amp_level dtype=amp_dtype"
    lists = " ".join(f"{key}=amp_{key}" for key in paddle.LISTS)
    _scaled(draft, section)
    if section.get("amp_level", "O2") == "O2":
        _call(draft, "decorate", section, level, level="O2", master_weight=True, optimizers=True)
    _call(draft, "auto_cast", section, f"{level} {lists}", level="O2", dtype="float16")
    paddle.finish(draft)


def _clas(root: Table, draft: Draft) -> None:
    """ppcls/engine/engine.py: an ``AMP`` section switches itself on; a fixed scale of 1.0, and O1."""
    section = root.table("AMP")
    _switched(section, draft, "AMP", section and section.get("use_amp", True), _clas_amp)
    trained = of_table(root.table("Global"), "", ["update_freq"])
    draft.take("step.accumulate", trained, "update_freq", 1, steps.micro_batches)
    written = root.get("Optimizer")
    parts = written if isinstance(written, list) else []
    sections = [part.table(name) for part in parts if isinstance(part, Table) for name in part]
    for section in sections or [root.table("Optimizer")]:
        _clip(section, draft, each="clip_norm")


def _clas_amp(section: Table, draft: Draft) -> None:
    level = section.get("level", "O1")
    if level not in ("O1", "O2", None):
        draft.ignored(section.place_of("level"), f"PaddleClas takes O1 for the level {level!r}.")
        section = section.having("level", "O1")
    _scaled(draft, section)
    if level == "O2":
        _call(draft, "decorate", section, "level", save_dtype="float32", optimizers=True)
        if "use_promote" in section:
            message = "PaddleClas passes use_promote on under Paddle 2.5 alone."
            draft.ignored(section.place_of("use_promote"), message)
    _call(draft, "auto_cast", section, "level", level="O1")
    paddle.finish(draft)


def _switched(
    section: Table, draft: Draft, name: str, on: Any, read: Callable[[Table, Draft], None]
) -> None:
    """A training in mixed precision, or without; then what it would be if the command line switched it on."""
    if on:
        read(section, draft)
        return
    draft.set("policy.level", "O0")
    if "use_amp" in section:
        other = Draft()
        read(section, other)
        switched = choosing.in_short(other.alternative((), ""))
        message = f"With -o {name}.use_amp=True on its command line, the training is {switched}."
        draft.note(
            section.place_of("use_amp"), message, "use_amp: True in the file, then port it again."
        )


def _detection(root: Table, amp: bool, draft: Draft) -> None:
    """tools/train.py: ``--amp`` decides, and overwrites what the file says of it."""
    if "amp" in root:
        message = (
            "tools/train.py overwrites amp by its flag --amp, which is off where it is not given."
        )
        draft.ignored(root.place_of("amp"), message, "python tools/train.py --amp -c FILE.yml")
    if amp:
        _call(draft, "GradScaler", root, "init_loss_scaling", init_loss_scaling=1024.0)
        is_o2, grad = root.get("amp_level", "O1") == "O2", root.place_of("master_grad")
        if is_o2:
            _call(draft, "decorate", root, "level=amp_level master_grad", optimizers=True)
        if root.get("master_grad", False) and is_o2:
            draft.note(grad, "PaddleDetection passes master_grad on under Paddle 2.5 alone.")
        elif root.get("master_grad", False):
            draft.ignored(grad, "master_grad has no effect below amp_level O2.")
        keys = f"level=amp_level {' '.join(paddle.LISTS)}"
        _call(draft, "auto_cast", root, keys, level="O1")
        paddle.finish(draft)
    else:
        draft.set("policy.level", "O0")
    _clip(
        root.table("OptimizerBuilder"), draft, joint="clip_grad_by_norm", value="clip_grad_by_value"
    )


_DETECTION = {
    "amp": bool,
    "amp_level": str,
    "master_grad": bool,
    "init_loss_scaling": int,
    "custom_black_list": list,
}
SEG_WHITE, SEG_BLACK = ["elementwise_add", "batch_norm", "sync_batch_norm"], ["bilinear_interp_v2"]


def _is_detection(root: Table) -> bool:
    """An ``architecture`` with its trainer's sections, or its trainer's keys."""
    sections = ("TrainReader", "TrainDataset", "OptimizerBuilder", "LearningRate")
    keyed = any(isinstance(root.get(key), kind) for key, kind in _DETECTION.items())
    return ("architecture" in root and _has(root, *sections)) or keyed


def _seg(root: Table, level: str, draft: Draft) -> None:
    """tools/train.py: ``--precision`` and ``--amp_level`` decide; the file says nothing of it."""
    if level == "O0":
        draft.set("policy.level", "O0")
    else:
        nothing = Table({}, root.place, {})
        _call(draft, "GradScaler", nothing, "", init_loss_scaling=1024.0)
        if level == "O2":
            both = {"level": "O2", "save_dtype": "float32", "optimizers": True}
            _call(draft, "decorate", nothing, "", **both)
        lists = dict(zip(paddle.LISTS, (SEG_WHITE, SEG_BLACK), strict=True))
        _call(draft, "auto_cast", nothing, "", level=level, enable=True, **lists)
        paddle.finish(draft)
    _clip_object(root.table("optimizer").table("grad_clip_cfg"), draft)


def _clip_object(section: Table, draft: Draft) -> None:
    """``{name: ClipGradByGlobalNorm, clip_norm: 1.0}``, a class of ``paddle.nn``."""
    name = f"paddle.nn.{section.get('name', 'ClipGradByGlobalNorm')}"
    if section and name in paddle.CLIPS:
        paddle.clip_object(of_table(section, name, ["clip_norm", "max", "min"]), draft)


def _clip(
    section: Table, draft: Draft, *, joint: str = "", each: str = "", value: str = ""
) -> None:
    """Clipping, by the keys that say it: by the joint norm, each gradient's norm, or each value."""
    for key, name in ((each, "clip_each_norm"), (value, "clip_value"), (joint, "clip_norm")):
        if key and section.get(key) is not None:
            steps.clip(draft, name, of_table(section, "paddle.nn", [key]), key)
            return


# -- what is built on torch


def _is_deepspeed(root: Table) -> bool:
    """A table under ``fp16`` or its like, or a key that DeepSpeed alone has."""
    sections = [root.get(name) for name in (*deepspeed.MODES[:3], "bfloat16")]
    amp = root.table("amp")
    own = _has(root, "zero_optimization", "train_micro_batch_size_per_gpu")
    return own or "enabled" in amp or any(isinstance(each, Table) for each in sections)


def _deepspeed(root: Table) -> Sequence[Way]:
    """``"enabled": "auto"`` is filled in by transformers: on or off, and one of them at most."""
    names = (*deepspeed.MODES, "bfloat16")
    filled = [name for name in names if is_filled_in(root.table(name).get("enabled"))]
    ways: list[Way] = []
    for chosen in (*filled, None):
        config = root
        for name in filled:
            config = config.having(name, root.table(name).having("enabled", name == chosen))
        told = tuple(f"{'' if name == chosen else 'not '}{name}.enabled" for name in filled)
        ways.append((told, partial(deepspeed.configure, of_table(config, "deepspeed", config))))
    return ways


def _accelerate(root: Table, draft: Draft) -> None:
    """``mixed_precision``, under DeepSpeed its section too; the rest stands in the script."""
    kind = str(root.get("distributed_type")).upper()
    if kind == "DEEPSPEED":
        _accelerate_deepspeed(root, draft)
        return
    try:
        name = entry(root, "mixed_precision").evaluate() if "mixed_precision" in root else "no"
    except NotKnown as error:
        draft.doubt(error.place, "policy.level")
        return
    word = "no" if name is False else str(name).lower()  # YAML takes no for false
    place = root.place_of("mixed_precision")
    hugging_face.precision(
        draft, word, place, on_cpu=root.get("use_cpu") is True, sharded=kind == "FSDP"
    )
    message = "Accumulation, clipping and the scaler's numbers are in the script, if anywhere."
    draft.note(root.place, message, "ampbridge port SCRIPT.py")


def _accelerate_deepspeed(root: Table, draft: Draft) -> None:
    """What accelerate makes of its own section: accelerate/utils/dataclasses.py, DeepSpeedPlugin."""
    section = root.table("deepspeed_config")
    if "deepspeed_config_file" in section:
        place = section.place_of("deepspeed_config_file")
        draft.doubt(place, "policy.level")
        draft.note(place, "That file has the precision.", f"ampbridge port {place.text}")
        return
    precision, place = root.get("mixed_precision"), root.place_of("mixed_precision")
    stage = constant(section.get("zero_stage", 2), section.place_of("zero_stage"))
    there = replace(section.place, text="gradient_accumulation_steps of the script")
    arguments = {
        "zero_optimization": Argument(place, lambda: None, None, lambda: {"stage": stage}),
        "gradient_clipping": constant(
            section.get("gradient_clipping", 1.0), section.place_of("gradient_clipping")
        ),
        "gradient_accumulation_steps": entry(section, "gradient_accumulation_steps")
        if "gradient_accumulation_steps" in section
        else entry(Table({"x": "auto"}, there, {"x": there}), "x"),
    }
    if precision in ("fp16", "bf16"):
        arguments[precision] = Argument(
            place, lambda: None, None, lambda: {"enabled": constant(True, place)}
        )
    deepspeed.configure(Call("deepspeed", root.place, arguments), draft)


def _lightning(root: Table, draft: Draft) -> None:
    """The ``trainer`` section as the call of ``Trainer``, its plugins and callbacks before it."""
    trainer = root.table("trainer")
    for key in ("plugins", "callbacks"):
        listed = trainer.get(key)
        for each in listed if isinstance(listed, list) else [listed]:
            _instantiated(each, draft)
    lightning.trainer(
        of_table(trainer, "lightning.pytorch.Trainer", lightning.TRAINER.split()), draft
    )


def _instantiated(described: Any, draft: Draft) -> None:
    """``{class_path: ..., init_args: ...}``, its arguments first."""
    if not isinstance(described, Table):
        return
    arguments = described.table("init_args")
    for value in arguments.values():
        _instantiated(value, draft)
    for dialect in (lightning.DIALECT, torch.DIALECT):
        name = dialect.resolve(str(described.get("class_path")))
        handler = dialect.calls[name][1] if name is not None else None
        if handler is not None and name is not None:
            handler(of_table(arguments, name, arguments), draft)


def _is_arguments(root: Table) -> bool:
    """Flags, not tables, beside other arguments of a training."""
    others = (
        "output_dir", "per_device_train_batch_size", "gradient_accumulation_steps",
        "num_train_epochs", "learning_rate",
    )  # fmt: skip
    return _has(root, "fp16", "bf16") and _has(root, *others)


def _paddlenlp(call: Call, draft: Draft) -> None:
    paddle.training_arguments(call, draft)
    paddle.finish(draft)


def _arguments(root: Table) -> Sequence[Way]:
    """All of the file as the call of ``TrainingArguments``: PaddleNLP's, where it has keys of its own."""
    lists = ("amp_custom_black_list", "amp_custom_white_list")
    if _has(root, "scale_loss", "amp_master_grad", *lists):
        call = of_table(root, "paddlenlp.trainer.TrainingArguments", root)
        return [((), partial(_paddlenlp, call))]
    call = of_table(root, "transformers.TrainingArguments", root)
    return [((), partial(hugging_face.training_arguments, call))]


_TRAINER_KEYS = {*lightning.TRAINER.split(), "max_epochs", "max_steps", "logger"} - {"devices"}
_CLAS_KEYS = ("use_amp", "level", "scale_loss", "use_dynamic_loss_scaling", "use_fp16_test")
_OCR_KEYS = ("use_amp", "amp_level", "amp_dtype", "amp_custom_black_list", "amp_custom_white_list")

FORMATS: Sequence[Format] = (  # the first that recognises a file reads it
    Format("deepspeed", _is_deepspeed, _deepspeed),
    Format(
        "accelerate",
        lambda t: (
            _has(t, "compute_environment", "distributed_type")
            or {"mixed_precision", "num_processes"} <= t.keys()
        ),
        _one(_accelerate),
    ),
    Format("lightning", lambda t: _has(t.table("trainer"), *_TRAINER_KEYS), _one(_lightning)),
    Format("accelerate", _is_arguments, _arguments),
    Format(
        "paddle",
        lambda t: _has(t.table("AMP"), *_CLAS_KEYS) or {"Global", "Arch"} <= t.keys(),
        _one(_clas),
    ),
    Format(
        "paddle",
        lambda t: "Global" in t and ("Architecture" in t or _has(t.table("Global"), *_OCR_KEYS)),
        _one(_ocr),
    ),
    Format(
        "paddle",
        _is_detection,
        lambda t: [
            (("train.py --amp",), partial(_detection, t, True)),
            (("train.py without --amp",), partial(_detection, t, False)),
        ],
    ),
    Format(
        "paddle",
        lambda t: "iters" in t and _has(t, "train_dataset", "model", settings.SEG),
        lambda t: [
            ((f"train.py --precision {said}",), partial(_seg, t, level))
            for said, level in (("fp16", "O1"), ("fp16 --amp_level O2", "O2"), ("fp32", "O0"))
        ],
    ),
)


def read(root: Table, file: str) -> Reading:
    """What a configuration says of mixed precision by itself."""
    form = next((each for each in FORMATS if each.recognises(root)), None)
    if form is None:
        return Reading(file, None, (), ())
    alternatives: list[Alternative] = []
    for conditions, meaning in form.ways(root):
        draft = Draft()
        meaning(draft)
        alternatives.append(draft.alternative(conditions, "which this file does not say"))
    findings = dict.fromkeys(found for each in alternatives for found in each.findings)
    is_paddle = any(each.settings.get("policy.lists") == "paddle" for each in alternatives)
    framework = "paddle" if is_paddle else form.framework
    return Reading(file, framework, tuple(alternatives), tuple(findings))


# -- with the program


def joined(program: Reading, config: Reading, table: Table) -> Reading:
    """A program's reading, and of its configuration's what the program leaves to functions found by name."""
    found = _joined(program, config)
    return _clipped(found, config.file, table) if found.framework == "paddle" else found


def _joined(program: Reading, config: Reading) -> Reading:
    if config.framework is None:
        return program
    if program.framework is None:
        message = (
            f"With {config.file}, {program.file} trains without mixed precision, as far as it can "
            "be followed; the rest is what such files mean."
        )
        note = Finding("note", Place(program.file, 1, 0, ""), message)
        told = (*config.findings, note)
        return replace(config, file=program.file, findings=told, ops=program.ops)
    first, *others = config.alternatives
    items = first.settings.items()
    known = {k: v for k, v in items if all(each.settings.get(k) == v for each in others)}
    filled = tuple(_filled(each, known, first) for each in program.alternatives)
    if filled == program.alternatives:
        return program
    still = {key for each in filled for key in each.unknown}
    asked = (item for each in program.alternatives for item in each.unknown.items())
    answered = {at for key, at in asked if key not in still}
    kept = tuple(f for f in program.findings if f.kind != "unknown" or f.place not in answered)
    told = tuple(each for each in first.findings if each.kind != "unknown")
    message = (
        f"What {program.file} leaves to functions that it finds by name is as such files mean it."
    )
    note = Finding("note", Place(config.file, 1, 0, ""), message)
    return replace(program, alternatives=filled, findings=(*kept, *told, note))


def _clipped(program: Reading, file: str, table: Table) -> Reading:
    """A program that clips by a class which its configuration names, and that nothing calls by name."""
    keys = {key for each in program.alternatives for key in (*each.settings, *each.unknown)}
    if any(key.startswith("step.clip") for key in keys):
        return program
    draft = Draft()
    named = [v for _, v, _ in table.walk() if isinstance(v, Table)]
    for section in named:
        for kind in map(section.get, ("name", "type", "class")):
            if f"paddle.nn.{kind}" in paddle.CLIPS:
                _clip_object(section.having("name", kind), draft)
                break
    if not draft.settings:
        return program
    found = draft.alternative((), "")
    message = (
        f"{program.file} makes what clips by the name that this file has; it is taken as Paddle's "
        "class of that name."
    )
    note = Finding("note", Place(file, 1, 0, ""), message)
    filled = tuple(_filled(each, draft.settings, found) for each in program.alternatives)
    return replace(program, alternatives=filled, findings=(*program.findings, note))


def _filled(alternative: Alternative, known: Mapping[str, Any], config: Alternative) -> Alternative:
    """An alternative with what it lacks of the step, and what is unknown of it."""
    clips = any(key.startswith("step.clip") for key in alternative.settings)
    lacks = [key for key in known if key.startswith("step.") and not (clips and "clip" in key)]
    added = {key: known[key] for key in lacks if key not in alternative.settings}
    if "policy.level" in alternative.unknown and "policy.level" in known:
        own = {key.partition(".")[0] for key in alternative.settings} - {"policy"}
        more = (key for key in known if key.partition(".")[0] not in own)
        added |= {key: known[key] for key in more if key not in alternative.settings}
    if alternative.settings.get("policy.level") != "O0":
        added |= {key: known[key] for key in alternative.unknown if key in known}
    if not added:
        return alternative
    comments = {key: said for key, said in config.comments.items() if key in added}
    origins = {key: origin for key, origin in config.origins.items() if key in added}
    return replace(
        alternative,
        settings={**alternative.settings, **added},
        unknown={key: at for key, at in alternative.unknown.items() if key not in added},
        comments={**alternative.comments, **comments},
        origins={**alternative.origins, **origins},
    )
