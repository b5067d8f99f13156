"""Paddle's AMP calls (3.3, with torch's names for them, and fluid's) in the words of ampbridge."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from ampbridge.policies.paddle_names import paddle_list
from ampbridge_port.reader.dialects.calls import Call, NotKnown
from ampbridge_port.reader.dialects.paddle import NUMBERS, TORCH_NUMBERS
from ampbridge_port.rewriters.expressions import (
    UNKNOWN,
    NoReplacement,
    Replacement,
    check_plain,
    dtype,
    literal,
    names,
    operand,
    policy,
    scaler,
    text,
)
from ampbridge_port.rewriters.torch import attribute, methods, renamed, unchanged, unsupported

SETTINGS: Mapping[str, str] = {
    **NUMBERS,
    **{name: name for name in TORCH_NUMBERS},
    "enable": "enabled",
    "enabled": "enabled",
}
SCALERS = ("paddle.amp.GradScaler", "paddle.amp.AmpScaler")


def auto_cast(call: Call) -> str:
    """``paddle.amp.auto_cast``: a region under Paddle's lists."""
    check_plain(call)
    if literal(text(call, "use_promote") or "True") in (False, 0):
        why = "use_promote=False, which runs every unlisted op low, is no rule here"
        raise NoReplacement(call, why, "leave use_promote out, or list the ops in allow.")
    allow, deny = (_ops(text(call, f"custom_{color}_list")) for color in ("white", "black"))
    return _region(call, _level(call), "enable", allow=allow, deny=deny)


def autocast(call: Call) -> str:
    """``paddle.autocast``, ``paddle.cuda.amp.autocast``: torch's spelling, at O1."""
    check_plain(call)
    return _region(call, '"O1"', "enabled")


def _region(call: Call, level: str, switch: str, **lists: str | None) -> str:
    low = dtype(text(call, "dtype"), "float16")
    made = policy(level, low, text(call, switch), lists='"paddle"', **lists)
    return f'ampbridge.autocast({made}, backend="paddle")'


def decorate(call: Call) -> str:
    """``paddle.amp.decorate``, which does nothing below O2."""
    check_plain(call)
    models, optimizers = text(call, "models"), text(call, "optimizers")
    if models is None or _is_collection(call, "models") or _is_collection(call, "optimizers"):
        why = "ampbridge decorates one model and one optimizer at a time"
        raise NoReplacement(call, why, "one decorate() for each model and its optimizer.")
    objects = models if optimizers is None else f"{models}, {optimizers}"
    level = _level(call)
    if literal(level) in ("O0", "O1"):
        return objects if optimizers is None else f"({objects})"
    if literal(level) is UNKNOWN:
        level = f'"O2" if {operand(level)} == "O2" else "O0"'
    low, masters = dtype(text(call, "dtype"), "float16"), _masters(text(call, "master_weight"))
    made = policy(level, low, lists='"paddle"', keep=_kept(call), masters=masters)
    others = {name: text(call, name) for name in ("save_dtype", "master_grad")}
    given = [f", {name}={written}" for name, written in others.items() if written is not None]
    return f"ampbridge.decorate({objects}, {made}{''.join(given)})"


def _masters(written: str | None) -> str | None:
    """``masters=`` for ``master_weight=``, which means True where it is None."""
    if written is not None and literal(written) is UNKNOWN:
        return f'"none" if {operand(written)} is False else "float32"'
    return "None" if literal(written) is False else None


def _is_collection(call: Call, name: str) -> bool:
    """Whether an argument is a list or a tuple, by its text or by what it was bound to."""
    written = text(call, name) or ""
    return written.startswith(("[", "(")) or (
        name in call.arguments and call.arguments[name].parts() is not None
    )


def _level(call: Call) -> str:
    written = text(call, "level") or '"O1"'
    try:
        value = call.value("level", "O1") or "O1"
    except NotKnown:
        return written
    if str(value).upper() not in ("O0", "O1", "O2"):
        why = f"level {value!r} (all but the white list in float32) is no level here"
        raise NoReplacement(call, why, "level='O1', with deny for ops that are to stay float32.")
    return written if literal(written) is UNKNOWN else f'"{str(value).upper()}"'


def _ops(written: str | None) -> str | None:
    """The canonical names of a list's entries, or the translation of them at run time."""
    if written is None:
        return None
    value = literal(written)
    if value is UNKNOWN:
        return f"paddle_list({operand(written)} or ()).canonical"
    canonical = paddle_list(value).canonical
    return names(sorted(canonical)) if canonical else None


def _kept(call: Call) -> str | None:
    """Layer classes by name; a layer object has a name only in its model."""
    written = text(call, "excluded_layers")
    if written is None:
        return None
    node = ast.parse(f"({written})", mode="eval").body
    classes = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    kept = [each.attr if isinstance(each, ast.Attribute) else "" for each in classes]
    if not all(name[:1].isupper() for name in kept):
        why = f"which layers excluded_layers={written} has is only known at run time"
        raise NoReplacement(call, why, "keep=['head'], the layers' names or classes.")
    return names(kept)


def grad_scaler(call: Call) -> str:
    """``paddle.amp.GradScaler``."""
    check_plain(call)
    return scaler(call, "paddle", SETTINGS)


def amp_scaler(call: Call) -> str:
    """``AmpScaler``, the older one: it begins at 2**15 and grows after 1,000 steps."""
    made = grad_scaler(call)
    defaults = {"init_scale": "32768.0", "growth_interval": "1000"}
    given = {SETTINGS[name] for name in call.arguments}
    missing = [f", {name}={value}" for name, value in defaults.items() if name not in given]
    return f"{made[:-1]}{''.join(missing)})"


# -- fleet, and hapi's Model


def distributed_scaler(call: Call) -> str:
    """``fleet.distributed_scaler``: ours finds the groups of ranks by itself."""
    check_plain(call)
    return text(call, "scaler") or "None"


def sharded(call: Call) -> None:
    """``group_sharded_parallel``, whose gradients lie in buffers of its own; see docs/distributed.md."""
    if text(call, "scaler") is not None:
        hint = "fleet.distributed_model and fleet.distributed_optimizer with sharding of stage 1."
        raise NoReplacement(call, "our scaler cannot see the gradients, and is refused", hint)


def prepare(call: Call) -> None:
    """``paddle.Model.prepare`` with ``amp_configs``: of ours it is a function of the model."""
    if text(call, "amp_configs") is not None:
        hint = "ampbridge_paddle.prepare(model, optimizer, loss, metrics, policy='O1')"
        raise NoReplacement(call, "amp_configs are Paddle's own mixed precision", hint)


_PIPELINE = (
    "runs the model and steps by itself, and takes no scaler but Paddle's",
    'scaler.to_native("paddle") for it, where scaler is an ampbridge.GradScaler.',
)
_FUSED = (
    "keeps gradients in buffers of its own, which our scaler cannot see",
    "take it out; sharding of stage 1 works without it.",
)
_BUFFERS = frozenset({"split_param", "tensor_fusion", "comm_overlap"})


def unseen(nodes: Sequence[ast.AST]) -> Iterator[tuple[ast.AST, tuple[str, str]]]:
    """Where fleet takes steps or keeps gradients that our scaler cannot see; see docs/distributed.md."""
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "train_batch":
            if len(node.args) > 3 or any(each.arg == "scaler" for each in node.keywords):
                yield node, _PIPELINE
        elif isinstance(node, ast.Assign):
            if getattr(node.targets[0], "attr", "") in _BUFFERS and _is_true(node.value):
                yield node, _FUSED
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            if any(
                getattr(key, "value", "") in _BUFFERS and _is_true(value) for key, value in pairs
            ):
                yield node, _FUSED


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


_KNOWN = [name for name in NUMBERS if name != "init_loss_scaling"]

REPLACEMENTS: Mapping[str, Replacement] = {
    "paddle.amp.auto_cast": auto_cast,
    **dict.fromkeys(("paddle.amp.autocast", "paddle.cuda.amp.autocast"), autocast),
    "paddle.amp.decorate": decorate,
    "paddle.amp.GradScaler": grad_scaler,
    "paddle.amp.AmpScaler": amp_scaler,
    "paddle.distributed.fleet.distributed_scaler": distributed_scaler,
    "paddle.Model.prepare": prepare,
    "paddle.distributed.sharding.group_sharded_parallel": sharded,
    **methods(
        SCALERS,
        **dict.fromkeys(("scale", "step", "update", "minimize"), unchanged),
        **{f"get_{name}": partial(attribute, f"config.{NUMBERS[name]}") for name in _KNOWN},
        **{f"set_{name}": unsupported for name in NUMBERS},
        get_init_loss_scaling=unsupported,
        unscale_=partial(renamed, "unscale"),
        is_enable=partial(attribute, "enabled"),
        is_use_dynamic_loss_scaling=partial(attribute, "config.dynamic"),
    ),
}
