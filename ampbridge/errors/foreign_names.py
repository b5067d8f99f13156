"""What people type who know torch, Keras, Paddle or Flax, and what it is called here.

A name that is not ours is an error that says ours. One table, for functions, classes and methods.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

from ampbridge.errors import AmpBridgeError, ArgumentTypeError, ForeignNameError, slips

P = ParamSpec("P")
R = TypeVar("R")

OURS: Mapping[str, Mapping[str, str]] = {
    "GradScaler": {
        **dict.fromkeys(
            ("init_loss_scaling", "initial_scale", "scale", "loss_scale"), "init_scale"
        ),
        "incr_ratio": "growth_factor",
        "decr_ratio": "backoff_factor",
        **dict.fromkeys(("incr_every_n_steps", "dynamic_growth_steps"), "growth_interval"),
        "decr_every_n_nan_or_inf": "backoff_interval",
        "use_dynamic_loss_scaling": "dynamic",
        "enable": "enabled",
    },
    "train_step": {
        **{
            theirs: ours
            for theirs, ours in slips.KEYS.items()
            if ours in ("accumulate", "clip_norm", "clip_each_norm", "clip_value")
        },
        "grad_scaler": "scaler",
        "lr_scheduler": "scheduler",
        **dict.fromkeys(("jit_compile", "jit"), "compile"),
    },
}
"""Of a function or class: a foreign argument, and the one that it is here, with the same value."""

OF_A_POLICY: Mapping[str, str] = {
    "custom_white_list": "allow",
    "custom_black_list": "deny",
    "excluded_layers": "keep",
    "master_weight": "masters",
    **dict.fromkeys(("level", "opt_level", "amp_level"), ""),
    **dict.fromkeys(("dtype", "amp_dtype", "compute_dtype"), ""),
    **dict.fromkeys(("precision", "mixed_precision"), ""),
}
"""Foreign arguments that choose a policy: a field of it, or empty for words of a level or a dtype."""

CALLS: Mapping[str, str] = {
    "GradScaler": "amp.GradScaler({})",
    "train_step": "amp.train_step(..., {})",
    "autocast": "amp.autocast({})",
    "decorate": "amp.decorate(model, optimizer, {})",
    "Policy": "amp.{}",
}

OTHERWISE: Mapping[str, Mapping[str, str]] = {
    "GradScaler": {"device": "amp.GradScaler(), which finds the device by the loss"},
    "autocast": {
        "device_type": "amp.autocast('O1'), which works on any device",
        "enabled": "amp.autocast('O1' if enabled else 'O0')",
        "enable": "amp.autocast('O1' if enable else 'O0')",
        "cache_enabled": "amp.autocast('O1'), which needs none",
        "use_promote": "amp.autocast('O1'), whose list set has the promote rules",
    },
    "Policy": {
        "use_promote": "amp.Policy('O1', lists='paddle'), whose list set has the promote rules",
        "enabled": "amp.Policy('O1' if enabled else 'O0')",
        "enable": "amp.Policy('O1' if enable else 'O0')",
        "device_type": "amp.Policy('O1'), which works on any device",
    },
    "train_step": {
        "enabled": "amp.train_step(..., policy='O1' if enabled else 'O0')",
        "models": "amp.train_step(loss_fn, model, optimizer)",
        "optimizers": "amp.train_step(loss_fn, model, optimizer)",
        "criterion": "amp.train_step(loss_fn, model, optimizer), where loss_fn(model, x, y) calls it",
        "loss": "amp.train_step(loss_fn, model, optimizer), where loss_fn(model, x, y) returns it",
        "has_aux": "amp.train_step(loss_fn, model, optimizer), where loss_fn may return (loss, aux)",
        "run_eagerly": "amp.train_step(...), which is eager unless compile=True is passed",
    },
    "decorate": {
        "models": "amp.decorate(model, optimizer, 'O2')",
        "optimizers": "amp.decorate(model, [optimizer, another], 'O2')",
        "scaler": "amp.decorate(model, optimizer, 'O2'), and scaler = amp.GradScaler() in the loop",
    },
}
"""Of a function or class: a foreign argument that is none here, and what to write."""


def is_foreign(kind: str, name: str) -> bool:
    """Whether another library's argument is ours by another name, for ``kind``."""
    tables = (OURS.get(kind, {}), OF_A_POLICY if kind in CALLS and kind != "GradScaler" else {})
    return any(name in table for table in tables) and name not in _TAKES.get(kind, ())


def _translated(kind: str, given: Mapping[str, object]) -> str:
    """The call to write for foreign arguments that are ours by another name, with their values."""
    ours = {OURS[kind][n]: _code(v) for n, v in given.items() if n in OURS.get(kind, {})}
    chosen = {name: value for name, value in given.items() if name in OF_A_POLICY}
    words = [f"{name}={value}" for name, value in ours.items()]
    if chosen:
        words.insert(0, ("policy=" if kind == "train_step" else "") + _policy(kind, chosen))
    return CALLS[kind].format(", ".join(words))


def _policy(kind: str, chosen: Mapping[str, object]) -> str:
    """A policy in code, by the words of a level and of a dtype in what was passed."""
    text = " ".join(str(v) for n, v in chosen.items() if not OF_A_POLICY[n]).casefold()
    found = re.search("o[012]", text)
    level = found[0].upper() if found else "O2" if kind == "decorate" else "O1"
    dtype = "bfloat16" if "bf" in text else "float16" if re.search("16|half", text) else ""
    if not dtype and "32" in text:
        level = "O0"
    fields = {OF_A_POLICY[n]: _code(v) for n, v in chosen.items() if OF_A_POLICY[n]}
    if "masters" in fields:  # Paddle's True, and its default
        fields["masters"] = "None" if chosen["master_weight"] is False else "'float32'"
    if not fields and kind != "Policy":
        return repr(f"{level}:{dtype}" if dtype and level != "O0" else level)
    words = [repr(level), *([repr(dtype)] if dtype and level != "O0" else [])]
    policy = f"Policy({', '.join([*words, *(f'{n}={v}' for n, v in fields.items())])})"
    return policy if kind == "Policy" else f"amp.{policy}"


def _code(value: object) -> str:
    """What to write for a value: itself, if that is code."""
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=str)
    plain = isinstance(value, (bool, int, float, str, list, tuple, type(None)))
    return repr(value) if plain and len(repr(value)) < 80 else "..."


def _accessors(setting: str, *theirs: str) -> dict[str, str]:
    change = f"scaler.load_state_dict({{**scaler.state_dict(), {setting!r}: ...}})"
    getters = {f"get_{name}": f"scaler.config.{setting}" for name in theirs}
    return {**getters, **{f"set_{name}": change for name in theirs}}


# Methods of torch's, Paddle's and Keras' scalers -> what to write here.
OF_A_SCALER: Mapping[str, str] = {
    "unscale_": "scaler.unscale(optimizer)",
    "is_enabled": "scaler.enabled",
    "is_enable": "scaler.enabled",
    "is_use_dynamic_loss_scaling": "scaler.config.dynamic",
    "get_init_loss_scaling": "scaler.get_scale()",
    "set_init_loss_scaling": "scaler.update(new_scale)",
    "scale_loss": "scaler.scale(loss)",
    "dynamic_scale": "scaler.get_scale()",
    **_accessors("growth_factor", "growth_factor", "incr_ratio"),
    **_accessors("backoff_factor", "backoff_factor", "decr_ratio"),
    **_accessors("growth_interval", "growth_interval", "incr_every_n_steps"),
    **_accessors("backoff_interval", "decr_every_n_nan_or_inf"),
}

# What trains, or forgets gradients, elsewhere -> what to write here.
OF_A_STEP: Mapping[str, str] = {
    "zero_grad": "step.reset(), between micro-batches; a complete step leaves no gradients",
    "clear_grad": "step.reset(), between micro-batches; a complete step leaves no gradients",
    **dict.fromkeys(("train_on_batch", "step", "fit"), "result = step(x, y)"),
}

# Functions of torch.amp, paddle.amp, Keras, Flax and apex -> what to write here.
OF_THE_MODULE: Mapping[str, str] = {
    **dict.fromkeys(("auto_cast", "amp_guard", "Autocast"), "amp.autocast('O1')"),
    **dict.fromkeys(("amp_decorate", "initialize"), "amp.decorate(model, optimizer, 'O2')"),
    "scale_loss": "scaler.scale(loss), or amp.train_step(loss_fn, model, optimizer)",
    "AmpScaler": "amp.GradScaler()",
    "LossScaleOptimizer": "amp.GradScaler.like('keras'), beside an optimizer that scales nothing",
    "DynamicLossScale": "amp.GradScaler()",
    "DynamicScale": "amp.GradScaler()",
    **dict.fromkeys(
        ("set_global_policy", "set_dtype_policy"), "amp.train_step(..., policy='O1:bfloat16')"
    ),
    **dict.fromkeys(
        ("custom_fwd", "custom_bwd"), "@amp.register_op, and its name in a policy's allow or deny"
    ),
    **dict.fromkeys(
        ("is_autocast_available", "is_float16_supported", "is_bfloat16_supported"), "amp.doctor()"
    ),
}

# Of a loss that is a tensor elsewhere, and a number here -> what to write.
OF_A_LOSS: Mapping[str, str] = {
    **dict.fromkeys(("item", "detach", "cpu", "numpy"), "result.loss, which is a Python number"),
    "backward": "result = step(x, y), which has differentiated the loss and stepped",
}

# Of a step's result -> what to read.
OF_A_RESULT: Mapping[str, str] = {
    **dict.fromkeys(("skipped", "found_inf", "overflow"), "not result.applied"),
    **dict.fromkeys(("metrics", "outputs", "logits"), "result.aux, if loss_fn returns (loss, aux)"),
    **dict.fromkeys(("item", "backward"), "result.loss, which is a Python number"),
    "loss_scale": "result.scale",
}

# torch's first argument of an autocast or a scaler.
DEVICES = ("cpu", "cuda", "gpu", "xpu", "npu", "mps", "tpu")


_TAKES: dict[str, Sequence[str]] = {}
"""The arguments of each function or class that ``told_of`` decorates."""


def told_of(kind: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for the function called ``kind``: arguments that it lacks raise an error with a hint.

    They are looked at when the call has failed, so that a call costs what it cost before.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        every = signature(function).parameters
        own = {name: each for name, each in every.items() if name not in ("self", "cls")}
        first = len(every) - len(own)
        _TAKES[kind] = tuple(own)

        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except (TypeError, AmpBridgeError):
                mistake = _mistake(kind, own, args[first:], kwargs)
                if mistake is None:
                    raise
            raise mistake

        return called

    return decorate


def _mistake(
    kind: str,
    own: Mapping[str, Parameter],
    given: Sequence[object],
    named: Mapping[str, object],
) -> ArgumentTypeError | None:
    """The error for arguments that do not fit the parameters ``own``."""
    kinds = {each.kind for each in own.values()}
    known = OTHERWISE.get(kind, {})
    for name in named:
        if name not in own and Parameter.VAR_KEYWORD not in kinds:
            return _no_argument(kind, name, named)
    for value in given if known else ():  # elsewhere it may be a path
        if isinstance(value, str) and value.partition(":")[0] in DEVICES:
            hint = known.get("device") or known.get("device_type") or f"help(amp.{kind})"
            return ArgumentTypeError(
                f"{kind} takes no device, and {value!r} was passed.\nHint: {hint}"
            )
    by_place = [n for n, each in own.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    if len(given) > len(by_place) and Parameter.VAR_POSITIONAL not in kinds:
        return _by_place(kind, by_place, given)
    one = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    needed = [n for n, each in own.items() if each.kind in one and each.default is each.empty]
    for name in needed:
        if name not in named and name not in by_place[: len(given)]:
            code = ", ".join(n if n in by_place else f"{n}=..." for n in needed)
            return ArgumentTypeError(
                f"{kind} needs {name!r}, which was not passed.\nHint: amp.{kind}({code})"
            )
    return None


def _no_argument(kind: str, name: str, given: Mapping[str, object]) -> ArgumentTypeError:
    msg, value, known = f"{kind} has no argument {name!r}", given[name], OTHERWISE.get(kind, {})
    if name in known:
        return ArgumentTypeError(f"{msg}, which is another library's.\nHint: {known[name]}")
    theirs = {n: v for n, v in given.items() if is_foreign(kind, n)}
    if name in theirs:
        others = "".join(f", nor {n!r}" for n in theirs if n != name)
        which = "which are" if others else "which is"
        hint = _translated(kind, theirs)
        return ArgumentTypeError(f"{msg}{others}, {which} another library's.\nHint: {hint}")
    for owner, place in (("Policy", "policy"), ("GradScaler", "scaler")):
        if place in _TAKES[kind] and name in _TAKES[owner]:
            hint = f"{place}=amp.{owner}(..., {name}={value!r:.80})"
            return ArgumentTypeError(f"{msg}, which is one of {owner}.\nHint: {hint}")
    hint = slips.did_you_mean(name, _TAKES[kind], slips.KEYS, f"help(amp.{kind})")
    return ArgumentTypeError(f"{msg}; allowed are {', '.join(_TAKES[kind])}.\n{hint}")


def _by_place(kind: str, by_place: Sequence[str], given: Sequence[object]) -> ArgumentTypeError:
    """The error for an argument that is passed by its name alone, or not at all."""
    value, rest = given[len(by_place)], [n for n in _TAKES[kind] if n not in by_place]
    field = slips.FIELDS.get(str(value).partition(":")[0].casefold())
    hint = f"amp.{kind}({', '.join(by_place)})"
    if rest:
        hint = f"by its name, one of {', '.join(rest)}"
    if field in rest:
        pairs = zip(by_place, given, strict=False)
        first = ", ".join(repr(v) if isinstance(v, str) else name for name, v in pairs)
        hint = f"amp.{kind}({first}, {field}={value!r})"
    return ArgumentTypeError(
        f"{kind} takes {', '.join(by_place) or 'nothing'} by place, and {value!r:.80} was passed as well.\n"
        f"Hint: {hint}"
    )


def no_attribute(
    owner: Any, name: str, known: Mapping[str, str], called: str | None = None
) -> ForeignNameError:
    """The error for ``__getattr__``; ``called`` is what a user calls ``owner``, if not by its class."""
    kind = called or type(owner).__name__
    if name not in known:
        return ForeignNameError(f"{kind} has no attribute {name!r}.\nHint: help({kind})")
    return ForeignNameError(
        f"{kind} has no attribute {name!r}, which is another library's.\nHint: {known[name]}"
    )


def no_name(module: str, name: str) -> AttributeError:
    """The error for a module's ``__getattr__``: Python's own, unless ``name`` is another library's."""
    msg = f"module {module!r} has no attribute {name!r}"
    if name not in OF_THE_MODULE:
        return AttributeError(msg)
    return ForeignNameError(f"{msg}, which is another library's.\nHint: {OF_THE_MODULE[name]}")
