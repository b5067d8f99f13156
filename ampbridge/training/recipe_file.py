"""The form of a recipe file: its sections and keys, TOML text, and the JSON schema of it.

    [policy]
    level = "O1"
    dtype = "float16"
    lists = "paddle"
    allow = ["add", "batch_norm"]

    [scaler]
    like = "paddle"
    init_scale = 1024.0

    [step]
    accumulate = 4

Keys are the parameter names of ``Policy``, ``GradScaler``, ``train_step`` and ``decorate``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ampbridge.errors import RecipeError, listed, slips
from ampbridge.errors.foreign_text import on_one_line
from ampbridge.errors.slips import did_you_mean, meant
from ampbridge.policies import op_table
from ampbridge.policies.policy import (
    EXECUTIONS,
    FLOAT32S,
    LEVELS,
    LOW_DTYPES,
    OUTPUT_DTYPES,
    SLOTS,
    WRITTEN_MASTERS,
)
from ampbridge.scaling.presets import PRESETS
from ampbridge.scaling.scale_rule import AT_MAX_SCALE, AT_MIN_SCALE, BACKOFF_COUNTS

ON_OVERFLOW = ("drop_step", "drop_microbatch")

JsonType = dict[str, Any]

_NUMBER: JsonType = {"type": "number", "exclusiveMinimum": 0}
_COUNT: JsonType = {"type": "integer", "minimum": 1}
_COUNT_OR_NEVER: JsonType = {"anyOf": [_COUNT, {"const": False}]}
_FLAG: JsonType = {"type": "boolean"}
_NAMES: JsonType = {"type": "array", "items": {"type": "string"}}


def _one_of(words: Iterable[str]) -> JsonType:
    return {"enum": list(words)}


# Section -> key -> what it says, and its JSON type.
SECTIONS: Mapping[str, Mapping[str, tuple[str, JsonType]]] = {
    "policy": {
        "level": ("O0 float32, O1 op by op, O2 low precision with masters", _one_of(LEVELS)),
        "dtype": ("the low precision", _one_of((*LOW_DTYPES, "float32"))),
        "lists": ("whose default op lists", _one_of(op_table.LIST_SETS)),
        "allow": ("more ops to run in low precision", _NAMES),
        "deny": ("more ops to run in float32", _NAMES),
        "keep": ("layers kept in float32, by name or class", _NAMES),
        "masters": (
            "what keeps the rest of an update of low parameters (O2)",
            _one_of(WRITTEN_MASTERS),
        ),
        "slots": ("how an optimizer keeps moments of low parameters (O2)", _one_of(SLOTS)),
        "output_dtype": ("dtype of the model's outputs", _one_of(OUTPUT_DTYPES)),
        "execution": ("native kernels or simulated rounding", _one_of(EXECUTIONS)),
        "float32": ("how float32 products are computed", _one_of(FLOAT32S)),
    },
    "scaler": {
        "like": ("the library whose rule the other keys change", _one_of(PRESETS)),
        "init_scale": ("the first loss scale", _NUMBER),
        "growth_factor": ("what it grows by", _NUMBER),
        "backoff_factor": ("what it shrinks by", _NUMBER),
        "growth_interval": ("finite steps in a row before it grows", _COUNT),
        "backoff_interval": ("overflowed steps before it shrinks", _COUNT),
        "min_scale": ("its floor", _NUMBER),
        "max_scale": ("its ceiling", _NUMBER),
        "dynamic": ("false keeps the first scale", _FLAG),
        "growth_delay": (
            "finite steps that do not count at first",
            {"type": "integer", "minimum": 0},
        ),
        "backoff_count": ("how overflowed steps are counted", _one_of(BACKOFF_COUNTS)),
        "at_max_scale": ("the effect of growth past max_scale", _one_of(AT_MAX_SCALE)),
        "at_min_scale": ("the effect of an overflow at min_scale", _one_of(AT_MIN_SCALE)),
        "warn_after_skips": ("skips in a row; false for never", _COUNT_OR_NEVER),
        "max_consecutive_skips": ("then an error; false for never", _COUNT_OR_NEVER),
        "enabled": ("false for no loss scaling", _FLAG),
    },
    "step": {
        "accumulate": ("micro-batches a step", _COUNT),
        "clip_norm": ("largest joint 2-norm of the unscaled gradients", _NUMBER),
        "clip_each_norm": ("largest 2-norm of each unscaled gradient", _NUMBER),
        "clip_value": ("largest magnitude of each number in the unscaled gradients", _NUMBER),
        "on_overflow": ("what an overflow in a micro-batch drops", _one_of(ON_OVERFLOW)),
    },
    "decorate": {
        "save_dtype": ("of parameters in the model's own checkpoints", _one_of(OUTPUT_DTYPES)),
        "master_grad": ("gradients of low parameters in float32 (O2)", _FLAG),
    },
}

_POLICY_OR_NAME: JsonType = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/policy"}]}

SCHEDULE: Mapping[str, tuple[str, JsonType]] = {
    "steps": (
        "[step, policy] pairs: from this step on, that policy",
        {"type": "array", "minItems": 1, "items": {"type": "array", "minItems": 2, "maxItems": 2}},
    ),
    "use": ("the policy once it has happened", _POLICY_OR_NAME),
    "otherwise": ("the policy before", _POLICY_OR_NAME),
    "loss_below": ("happened: a loss under this", {"type": "number"}),
    "back_above": ("back again above this loss", {"type": "number"}),
    "skips": ("happened: so many skips in a row", _COUNT),
    "back_after": ("back again after so many applied steps", _COUNT),
}

LONGEST = 2**18
"""Characters: a longer text takes seconds to parse, and is no recipe."""

HEADER = "A mixed-precision recipe: amp.train_step(..., recipe=amp.Recipe.load(path)), with any framework."


def parse(text: str, where: str) -> dict[str, Any]:
    """The tables of TOML ``text`` as plain values, their sections and keys checked."""
    if len(text) > LONGEST:
        msg = f"{where} has {len(text):,} characters; a recipe has {LONGEST:,} at most.\n"
        raise RecipeError(msg + "Hint: amp.Recipe().save('recipe.toml') writes a short one.")
    if text.startswith("\ufeff"):
        msg = f"{where} begins with a byte order mark, which TOML has not.\n"
        raise RecipeError(msg + "Hint: file.write_text(file.read_text('utf-8-sig'), 'utf-8')")

    import tomlkit  # only where files are read or written
    from tomlkit.exceptions import TOMLKitError

    try:
        data: dict[str, Any] = tomlkit.parse(text).unwrap()
    except (TOMLKitError, ValueError, RecursionError) as error:
        msg = f"{where} is no TOML: {error!s:.300}.\nHint: amp.Recipe().save('recipe.toml') writes one."
        raise RecipeError(msg) from error
    check_keys(data)
    return data


def check_keys(data: Mapping[str, Any]) -> None:
    """Refuse a section or a key that is not known, and name the nearest that is."""
    known: Mapping[str, Iterable[str]] = {**SECTIONS, "schedule": SCHEDULE}
    for section, values in data.items():
        if section not in known:
            raise RecipeError(unknown("A recipe", section, known, _under_a_section(section)))
        if not isinstance(values, Mapping):
            raise RecipeError(
                f"[{section}] is a table, not {values!r:.100}.\nHint: write [{section}] on a line."
            )
        for key in values:
            if key not in known[section]:
                hint = _under_a_section(key)
                raise RecipeError(unknown(f"[{section}]", key, known[section], hint))


def unknown(
    where: str, name: object, known: Iterable[str], otherwise: str = "leave it out."
) -> str:
    """The message for a name that ``where`` does not have."""
    hint = did_you_mean(name, known, slips.KEYS, otherwise)
    return f"{where} has no {name!r:.100}; allowed are {listed(known)}.\n{hint}"


def _under_a_section(name: object) -> str:
    """The hint for a key that belongs into another section."""
    for section, keys in SECTIONS.items():
        key = meant(name, keys, slips.KEYS)
        if key is not None:
            return f"[{section}] above {key} = ..."
    return "leave it out."


def text_of(data: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """``data`` as TOML, each key with a comment: that of ``comments["section.key"]``, or ours."""
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment(HEADER))
    for section, values in data.items():
        table = tomlkit.table()
        for key, value in values.items():
            item = tomlkit.item(value)
            known = SCHEDULE if section == "schedule" else SECTIONS[section]
            if not isinstance(value, Mapping):
                item.comment(on_one_line(comments.get(f"{section}.{key}", known[key][0])))
            table.add(key, item)
        document.add(tomlkit.nl())
        document.add(section, table)
    return tomlkit.dumps(document)


def schema() -> JsonType:
    """The JSON schema (2020-12) of a recipe file, for editors that check TOML by one."""
    tables = {
        section: {
            "type": "object",
            "properties": {
                key: {"description": says, **kind} for key, (says, kind) in keys.items()
            },
            "additionalProperties": False,
        }
        for section, keys in {**SECTIONS, "schedule": SCHEDULE}.items()
    }
    policy = tables.pop("policy")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ampbridge recipe",
        "description": HEADER,
        "type": "object",
        "properties": {"policy": {"$ref": "#/$defs/policy"}, **tables},
        "additionalProperties": False,
        "$defs": {"policy": policy},
    }
