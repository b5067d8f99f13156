"""Configuration of what is built on torch: DeepSpeed, Accelerate, Lightning, transformers.

Keys: DeepSpeed as in ``readers.deepspeed``; Accelerate's of accelerate/commands/config/config_args.py
(1.15); Lightning's ``trainer`` section of LightningCLI, its keys the parameters of ``Trainer``;
transformers' ``TrainingArguments``, as ``HfArgumentParser.parse_yaml_file`` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from ampbridge_port.configs.way import Format, Way, has_any, one_way
from ampbridge_port.dialect import Call, Dialect, Draft, NotKnown
from ampbridge_port.readers import accelerate, deepspeed, lightning, torch
from ampbridge_port.table import Entry, Table, is_filled_in

# -- DeepSpeed


def is_deepspeed(root: Table) -> bool:
    """A table under ``fp16`` or its like, or a key that DeepSpeed alone has."""
    sections = (*deepspeed.MODES, "bfloat16")
    return any(map(partial(_has_mode, root), sections)) or has_any(
        root, "zero_optimization", "train_micro_batch_size_per_gpu"
    )


def _has_mode(root: Table, name: str) -> bool:
    """Programs of one's own call a section ``amp``, too: DeepSpeed's is apex', which is enabled."""
    section = root.get_raw(name)
    return isinstance(section, Table) and (name != "amp" or has_any(section, "enabled"))


def deepspeed_ways(root: Table) -> Sequence[Way]:
    """``"enabled": "auto"`` is filled in by transformers: on or off, and one of them at most."""
    filled = [name for name in deepspeed.MODES if _is_auto(deepspeed.section(root, name))]
    ways = []
    for flags in product((True, False), repeat=len(filled)):
        if sum(flags) <= 1:
            config = root
            for name, on in zip(filled, flags, strict=True):
                config = _switched(config, name, on)
            conditions = tuple(
                f"{name}.enabled" if on else f"not {name}.enabled"
                for name, on in zip(filled, flags, strict=True)
            )
            ways.append(Way(conditions, partial(deepspeed.configure, config)))
    return ways


def _is_auto(mode: Table) -> bool:
    return is_filled_in(mode.get_raw("enabled"))


def _switched(config: Table, name: str, on: bool) -> Table:
    return config.with_value(name, deepspeed.section(config, name).with_value("enabled", on))


# -- Accelerate


def is_accelerate(root: Table) -> bool:
    """What ``accelerate config`` writes."""
    return (
        has_any(root, "compute_environment", "distributed_type")
        or {
            "mixed_precision",
            "num_processes",
        }
        <= root.entries.keys()
    )


def read_accelerate(root: Table, draft: Draft) -> None:
    """``mixed_precision``, under DeepSpeed its section too; the rest stands in the script."""
    kind = str(root.get_raw("distributed_type")).upper()
    if kind == "DEEPSPEED":
        _read_accelerate_deepspeed(root, draft)
        return
    call = root.call("accelerate", ("mixed_precision",))
    try:
        name = _word(call.value("mixed_precision", "no"))
    except NotKnown as error:
        draft.unknown["policy.level"] = error.place
        return
    accelerate.precision(
        draft,
        name,
        call.place_of("mixed_precision"),
        on_cpu=root.get_raw("use_cpu") is True,
        sharded=kind == "FSDP",
    )
    draft.find(
        "note",
        root.place,
        "Accumulation, clipping and the scaler's numbers are in the script, if anywhere.",
        "ampbridge port SCRIPT.py",
    )


def _word(precision: Any) -> str:
    """``no``, which YAML takes for false where it is not quoted, or what is written."""
    return "no" if precision is False else str(precision).lower()


def _read_accelerate_deepspeed(root: Table, draft: Draft) -> None:
    section = root.table("deepspeed_config")
    if "deepspeed_config_file" in section.entries:
        place = section.place_of("deepspeed_config_file")
        draft.unknown["policy.level"] = place
        draft.find("note", place, "That file has the precision.", f"ampbridge port {place.text}")
        return
    deepspeed.configure(_deepspeed_config(root, section), draft)


def _deepspeed_config(root: Table, section: Table) -> Table:
    """What accelerate makes of its own section: accelerate/utils/dataclasses.py, DeepSpeedPlugin."""
    precision = root.get_raw("mixed_precision")
    place = root.place_of("mixed_precision")
    stage = section.entries.get("zero_stage", Entry(2, section.place))
    steps = Entry("auto", replace(section.place, text="gradient_accumulation_steps of the script"))
    entries = {
        "zero_optimization": Entry(Table({"stage": stage}, stage.place), stage.place),
        "gradient_clipping": section.entries.get("gradient_clipping", Entry(1.0, section.place)),
        "gradient_accumulation_steps": section.entries.get("gradient_accumulation_steps", steps),
    }
    if precision in ("fp16", "bf16"):
        entries[precision] = Entry(Table({"enabled": Entry(True, place)}, place), place)
    return Table(entries, root.place)


# -- Lightning

_TRAINER = lightning.DIALECT.signatures["lightning.pytorch.Trainer"]


def is_lightning(root: Table) -> bool:
    """LightningCLI's ``trainer`` section."""
    return has_any(
        root.table("trainer"), *set(_TRAINER) - {"devices"}, "max_epochs", "max_steps", "logger"
    )


def read_lightning(root: Table, draft: Draft) -> None:
    """The ``trainer`` section as the call of ``Trainer``, its plugins and callbacks before it."""
    trainer = root.table("trainer")
    for key in ("plugins", "callbacks"):
        listed = trainer.get_raw(key)
        for each in listed if isinstance(listed, list) else [listed]:
            _instantiate(each, draft)
    lightning.trainer(trainer.call("lightning.pytorch.Trainer", _TRAINER), draft)


def _instantiate(described: Any, draft: Draft) -> None:
    """``{class_path: ..., init_args: ...}``, its arguments first."""
    if not isinstance(described, Table):
        return
    arguments = described.table("init_args")
    for entry in arguments.entries.values():
        _instantiate(entry.value, draft)
    for dialect in (lightning.DIALECT, torch.DIALECT):
        handle(
            dialect, arguments.call(str(described.get_raw("class_path")), arguments.entries), draft
        )


def handle(dialect: Dialect, call: Call, draft: Draft) -> None:
    """What a call means in a dialect, if anything."""
    name = dialect.aliases.get(call.name, call.name)
    handler: Callable[[Call, Draft], None] | None = dialect.handlers.get(name)
    if handler is not None:
        handler(call, draft)


# -- transformers


def is_transformers(root: Table) -> bool:
    """Flags, not tables, beside other arguments of a training."""
    return has_any(root, "fp16", "bf16") and has_any(
        root,
        "output_dir",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_train_epochs",
        "learning_rate",
    )


def read_transformers(root: Table, draft: Draft) -> None:
    """All of the file as the call of ``TrainingArguments``."""
    parameters = accelerate.DIALECT.signatures["transformers.TrainingArguments"]
    accelerate.training_arguments(root.call("transformers.TrainingArguments", parameters), draft)


FORMATS = (
    Format("deepspeed", is_deepspeed, deepspeed_ways),
    Format("accelerate", is_accelerate, one_way(read_accelerate)),
    Format("lightning", is_lightning, one_way(read_lightning)),
    Format("accelerate", is_transformers, one_way(read_transformers)),
)
