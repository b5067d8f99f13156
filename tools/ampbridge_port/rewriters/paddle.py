"""Paddle's AMP calls (3.3, and the fluid spellings of the same) in the words of ampbridge."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import partial

from ampbridge.policies.paddle_names import paddle_list
from ampbridge_port.dialect import Call
from ampbridge_port.rewriters.expressions import (
    UNKNOWN,
    NoReplacement,
    Replacement,
    check_plain,
    dtype,
    literal,
    operand,
    policy,
    scaler,
    text,
)
from ampbridge_port.rewriters.torch import attribute, renamed, unchanged, unsupported

SETTINGS = {
    "init_loss_scaling": "init_scale",
    "incr_ratio": "growth_factor",
    "decr_ratio": "backoff_factor",
    "incr_every_n_steps": "growth_interval",
    "decr_every_n_nan_or_inf": "backoff_interval",
    "use_dynamic_loss_scaling": "dynamic",
    "enable": "enabled",
}


def auto_cast(call: Call) -> str:
    """``paddle.amp.auto_cast``: a region under Paddle's lists."""
    check_plain(call)
    if literal(text(call, "use_promote")) is not UNKNOWN and not literal(text(call, "use_promote")):
        msg = f"{call.place.text}: use_promote=False, which runs every unlisted op low, is no rule here."
        raise NoReplacement(msg, "leave use_promote out, or list the ops in allow.")
    made = policy(
        _level(call),
        dtype(text(call, "dtype"), "float16"),
        text(call, "enable"),
        lists='"paddle"',
        allow=_ops(text(call, "custom_white_list")),
        deny=_ops(text(call, "custom_black_list")),
    )
    return f'ampbridge.autocast({made}, backend="paddle")'


def decorate(call: Call) -> str:
    """``paddle.amp.decorate``, which does nothing below O2."""
    check_plain(call)
    models, optimizers = text(call, "models"), text(call, "optimizers")
    several = any(_is_collection(call, name) for name in ("models", "optimizers"))
    if models is None or several:
        msg = f"{call.place.text}: ampbridge decorates one model and one optimizer at a time."
        raise NoReplacement(msg, "one decorate() for each model and its optimizer.")
    objects = models if optimizers is None else f"{models}, {optimizers}"
    level = _level(call)
    if literal(level) in ("O0", "O1"):
        return objects if optimizers is None else f"({objects})"
    if literal(level) is UNKNOWN:
        level = f'"O2" if {operand(level)} == "O2" else "O0"'
    made = policy(
        level,
        dtype(text(call, "dtype"), "float16"),
        lists='"paddle"',
        keep=_kept(text(call, "excluded_layers")),
        master_weights=text(call, "master_weight"),
    )
    others = "".join(
        f", {name}={written}"
        for name in ("save_dtype", "master_grad")
        if (written := text(call, name)) is not None
    )
    return f"ampbridge.decorate({objects}, {made}{others})"


def _is_collection(call: Call, name: str) -> bool:
    """Whether an argument is a list or a tuple, by its text or by what it was bound to."""
    written = text(call, name) or ""
    return written.startswith(("[", "(")) or (
        name in call.arguments and call.arguments[name].parts() is not None
    )


def _level(call: Call) -> str:
    written = text(call, "level") or '"O1"'
    value = literal(written)
    if value is UNKNOWN:
        return written
    if str(value).upper() not in ("O0", "O1", "O2"):
        msg = f"{call.place.text}: level {value!r} (all but the white list in float32) is no level here."
        raise NoReplacement(msg, "level='O1', with deny for the ops that are to stay float32.")
    return f'"{str(value).upper()}"'


def _ops(written: str | None) -> str | None:
    """The canonical names of a list's entries, or the translation of them at run time."""
    if written is None:
        return None
    value = literal(written)
    if value is UNKNOWN:
        return f"paddle_list({written} or ()).canonical"
    canonical = paddle_list(value).canonical
    return None if not canonical else str(sorted(canonical)).replace("'", '"')


def _kept(written: str | None) -> str | None:
    """Layer classes by name; a layer object has a name only in its model."""
    if written is None:
        return None
    node = ast.parse(f"({written})", mode="eval").body
    classes = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    names = [each.attr if isinstance(each, ast.Attribute) else "" for each in classes]
    if not all(name[:1].isupper() for name in names):
        msg = f"excluded_layers={written}: which layers these are is only known at run time."
        raise NoReplacement(msg, "keep=['head'], the layers' names or classes.")
    return str(names).replace("'", '"')


def grad_scaler(call: Call) -> str:
    """``paddle.amp.GradScaler``."""
    check_plain(call)
    return scaler(call, "paddle", SETTINGS)


def amp_scaler(call: Call) -> str:
    """``AmpScaler``, the older one: it begins at 2**15 and grows after 1,000 steps."""
    made = grad_scaler(call)
    defaults = {
        "init_loss_scaling": "init_scale=32768.0",
        "incr_every_n_steps": "growth_interval=1000",
    }
    missing = [ours for theirs, ours in defaults.items() if theirs not in call.arguments]
    return made[:-1] + "".join(f", {each}" for each in missing) + ")"


def distributed_scaler(call: Call) -> str:
    """``fleet.distributed_scaler``: ours finds the groups of ranks by itself."""
    check_plain(call)
    (scaler_text,) = (argument.place.text for argument in call.arguments.values())
    return scaler_text


def sharded(call: Call) -> None:
    """``group_sharded_parallel``, whose gradients lie in buffers of its own; see docs/distributed.md."""
    if text(call, "scaler") in (None, "None"):
        return
    msg = f"{call.place.text.splitlines()[0]}: our scaler cannot see the gradients, and is refused."
    hint = "fleet.distributed_model and fleet.distributed_optimizer with sharding of stage 1."
    raise NoReplacement(msg, hint)


def prepare(call: Call) -> None:
    """``paddle.Model.prepare`` with ``amp_configs``: of ours it is a function of the model."""
    if text(call, "amp_configs") is None:
        return
    msg = f"{call.place.text.splitlines()[0]}: amp_configs are Paddle's own mixed precision."
    hint = "ampbridge_paddle.prepare(model, optimizer, loss, metrics, policy='O1')"
    raise NoReplacement(msg, hint)


_GETTERS = ("incr_ratio", "decr_ratio", "incr_every_n_steps", "decr_every_n_nan_or_inf")
_SCALERS = ("paddle.amp.GradScaler", "paddle.amp.AmpScaler")

_METHODS: Mapping[str, Replacement] = {
    **dict.fromkeys(
        ("scale", "step", "update", "minimize", "state_dict", "load_state_dict"), unchanged
    ),
    "unscale_": partial(renamed, "unscale"),
    "is_enable": partial(attribute, "enabled"),
    "is_use_dynamic_loss_scaling": partial(attribute, "config.dynamic"),
    **{f"get_{name}": partial(attribute, f"config.{SETTINGS[name]}") for name in _GETTERS},
    **{f"set_{name}": unsupported for name in SETTINGS},
}

REPLACEMENTS: Mapping[str, Replacement] = {
    "paddle.amp.auto_cast": auto_cast,
    "paddle.amp.autocast": auto_cast,
    "paddle.amp.decorate": decorate,
    "paddle.amp.GradScaler": grad_scaler,
    "paddle.amp.AmpScaler": amp_scaler,
    "paddle.distributed.fleet.distributed_scaler": distributed_scaler,
    "paddle.Model.prepare": prepare,
    "paddle.distributed.sharding.group_sharded_parallel": sharded,
    **{f"{scaler}.{name}": each for scaler in _SCALERS for name, each in _METHODS.items()},
}
