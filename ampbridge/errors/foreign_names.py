"""What people type who know torch, Keras, Paddle or Flax, and what it is called here.

A name that is not ours is an error that says ours. One table, for functions, classes and methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

from ampbridge.errors import ArgumentTypeError, ForeignNameError, slips

P = ParamSpec("P")
R = TypeVar("R")

_STEP = {"accumulate": 4, "clip_norm": 1.0, "clip_each_norm": 1.0, "clip_value": 1.0}
"""Settings of a step, each with a value for a hint."""

_LISTS = {
    "custom_white_list": "amp.Policy('O1', allow=[...])",
    "custom_black_list": "amp.Policy('O1', deny=[...])",
}

_POLICY_OF_A_STEP = "amp.train_step(..., policy='O1:bfloat16')"

# Of a function or class: a foreign argument -> what to write here.
ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "GradScaler": {
        "init_loss_scaling": "amp.GradScaler(init_scale=65536.0)",
        "initial_scale": "amp.GradScaler(init_scale=32768.0)",
        "incr_ratio": "amp.GradScaler(growth_factor=2.0)",
        "decr_ratio": "amp.GradScaler(backoff_factor=0.5)",
        "incr_every_n_steps": "amp.GradScaler(growth_interval=2000)",
        "dynamic_growth_steps": "amp.GradScaler(growth_interval=2000)",
        "decr_every_n_nan_or_inf": "amp.GradScaler(backoff_interval=1)",
        "use_dynamic_loss_scaling": "amp.GradScaler(dynamic=True)",
        "enable": "amp.GradScaler(enabled=True)",
        "device": "amp.GradScaler(), which finds the device by the loss",
    },
    "autocast": {
        **_LISTS,
        "device_type": "amp.autocast('O1'), which works on any device",
        "dtype": "amp.autocast('O1:bfloat16')",
        "level": "amp.autocast('O1')",
        "enabled": "amp.autocast('O1' if enabled else 'O0')",
        "enable": "amp.autocast('O1' if enable else 'O0')",
        "cache_enabled": "amp.autocast('O1'), which needs none",
        "use_promote": "amp.autocast('O1'), whose list set has the promote rules",
    },
    "Policy": {
        **_LISTS,
        "use_promote": "amp.Policy('O1', lists='paddle'), whose list set has the promote rules",
        "enabled": "amp.Policy('O1' if enabled else 'O0')",
        "enable": "amp.Policy('O1' if enable else 'O0')",
        "device_type": "amp.Policy('O1'), which works on any device",
        "compute_dtype": "amp.Policy('O1', 'bfloat16')",
    },
    "train_step": {
        **{
            theirs: f"amp.train_step(..., {ours}={_STEP[ours]})"
            for theirs, ours in slips.KEYS.items()
            if ours in _STEP
        },
        **dict.fromkeys(("level", "dtype", "precision", "amp_dtype"), _POLICY_OF_A_STEP),
        **dict.fromkeys(("opt_level", "amp_level", "mixed_precision"), _POLICY_OF_A_STEP),
        "enabled": "amp.train_step(..., policy='O1' if enabled else 'O0')",
        "models": "amp.train_step(loss_fn, model, optimizer)",
        "optimizers": "amp.train_step(loss_fn, model, optimizer)",
        "criterion": "amp.train_step(loss_fn, model, optimizer), where loss_fn(model, x, y) calls it",
        "loss": "amp.train_step(loss_fn, model, optimizer), where loss_fn(model, x, y) returns it",
        "grad_scaler": "amp.train_step(..., scaler=amp.GradScaler())",
        "lr_scheduler": "amp.train_step(..., scheduler=lr_scheduler)",
        "jit_compile": "amp.train_step(..., compile=True)",
    },
    "decorate": {
        "models": "amp.decorate(model, optimizer, 'O2')",
        "optimizers": "amp.decorate(model, [optimizer, another], 'O2')",
        "level": "amp.decorate(model, optimizer, 'O2')",
        "opt_level": "amp.decorate(model, optimizer, 'O2')",
        "dtype": "amp.decorate(model, optimizer, 'O2:bfloat16')",
        "master_weight": "amp.decorate(model, optimizer, amp.Policy('O2', masters=None))",
        "excluded_layers": "amp.decorate(model, optimizer, amp.Policy('O2', keep=[...]))",
    },
}


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
    """A decorator for the function called ``kind``: arguments that it lacks raise an error with a hint."""

    known = ARGUMENTS.get(kind, {})

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        own = {
            n: each
            for n, each in signature(function).parameters.items()
            if n not in ("self", "cls")
        }
        takes = _TAKES[kind] = tuple(own)
        by_place = tuple(n for n, each in own.items() if each.kind is each.POSITIONAL_OR_KEYWORD)
        named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        needed = tuple(
            n for n, each in own.items() if each.kind in named and each.default is each.empty
        )
        kinds = {each.kind for each in own.values()}
        is_method = len(own) < len(signature(function).parameters)

        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            given = args[1:] if is_method else args
            for name in kwargs:
                if name not in takes and Parameter.VAR_KEYWORD not in kinds:
                    raise _no_argument(kind, name, kwargs[name])
            for value in given if known else ():  # elsewhere it may be a path
                if isinstance(value, str) and value.partition(":")[0] in DEVICES:
                    hint = known.get("device") or known.get("device_type") or f"help(amp.{kind})"
                    raise ArgumentTypeError(
                        f"{kind} takes no device, and {value!r} was passed.\nHint: {hint}"
                    )
            if len(given) > len(by_place) and Parameter.VAR_POSITIONAL not in kinds:
                raise _by_place(kind, by_place, given)
            for name in needed:
                if name not in kwargs and name not in by_place[: len(given)]:
                    raise ArgumentTypeError(
                        f"{kind} needs {name!r}, which was not passed.\n"
                        f"Hint: amp.{kind}"
                        f"({', '.join(n if n in by_place else f'{n}=...' for n in needed)})"
                    )
            return function(*args, **kwargs)

        return called

    return decorate


def _no_argument(kind: str, name: str, value: object) -> ArgumentTypeError:
    msg, known = f"{kind} has no argument {name!r}", ARGUMENTS.get(kind, {})
    if name in known:
        return ArgumentTypeError(f"{msg}, which is another library's.\nHint: {known[name]}")
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
