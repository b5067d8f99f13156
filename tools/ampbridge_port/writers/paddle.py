"""Recipes as modules for Paddle.

``paddle.amp.auto_cast`` casts op by op, by Paddle's lists and by custom ones, whose names are those of
its old static graph; ``paddle.amp.decorate`` makes the model of O2. A loss scale that
``paddle.amp.GradScaler`` does not know is written out, as are accumulation and schedules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ampbridge.policies import op_table
from ampbridge.policies.native_lists import paddle_lists, paddle_rules, wanted_rules
from ampbridge.policies.paddle_names import paddle_names
from ampbridge.policies.policy import Policy
from ampbridge.scaling.presets import PRESETS
from ampbridge.training.recipe import Recipe, Scaling
from ampbridge_port.writers import Comments, Form, Loss, Target, eager_text
from ampbridge_port.writers import paddle_text as text
from ampbridge_port.writers.ampbridge import demo_section, module_with_ampbridge, no_losses
from ampbridge_port.writers.code import (
    Group,
    Item,
    constant_words,
    fill,
    laid_out,
    literal,
    named,
    program,
)
from ampbridge_port.writers.eager import (
    backward,
    loss_scale_section,
    numbers,
    present_scale,
    saved,
    state_methods,
)
from ampbridge_port.writers.loop import (
    alarms,
    batch_note,
    drops_microbatches,
    model_parts,
    module,
    precision_names,
    schedule_section,
    train_section,
)

# -- what goes into the code


def _is_grad_scaler(recipe: Recipe) -> bool:
    """Whether ``paddle.amp.GradScaler`` does it, which switches itself off but in float16."""
    scaling = recipe.scaler
    if scaling is None or recipe.schedule is not None or drops_microbatches(recipe):
        return False
    if scaling.growth_factor == 1.0 or scaling.backoff_factor == 1.0:
        return False
    names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "backoff_interval")
    others = ("dynamic", "warn_after_skips", "max_consecutive_skips")
    of_paddle = {
        **PRESETS["paddle"].settings,
        **{name: getattr(scaling, name) for name in (*names, *others)},
    }
    return scaling == Scaling(**of_paddle) and recipe.policy.dtype == "float16"


def _is_float32(recipe: Recipe) -> bool:
    return all(policy.level == "O0" for policy in recipe.policies)


def _is_decorated(recipe: Recipe) -> bool:
    """Paddle makes a model that of O2 for good."""
    return recipe.schedule is None and recipe.policy.level == "O2"


def _kept(policy: Policy) -> Sequence[str]:
    return policy.keep if policy.level != "O0" else ()


def _keeps(recipe: Recipe) -> bool:
    return any(map(_kept, recipe.policies))


def _returns_low(recipe: Recipe) -> bool:
    return any(policy.output_dtype != "float32" for policy in recipe.policies)


# -- precision


def _precision_section(recipe: Recipe) -> str:
    if _is_float32(recipe) and recipe.schedule is None and not _returns_low(recipe):
        return text.CAST
    scheduled = recipe.schedule is not None
    output_dtype = fill(text.OUTPUT_DTYPE, dtype=recipe.policy.output_dtype)
    return program(
        fill(
            text.PRECISION,
            lists=_list_constants(recipe),
            output_dtype=output_dtype if _returns_low(recipe) and not scheduled else "",
        ),
        _scheduled_precision(recipe) if scheduled else "",
        schedule_section(recipe),
        _keep_section() if _keeps(recipe) else "",
        _autocast_section(recipe),
        _decorate_section(recipe),
        text.CAST,
    )


def _list_constants(recipe: Recipe) -> str:
    """``WHITE_LIST = ...`` and ``BLACK_LIST = ...``, of each policy."""
    names = precision_names(recipe)
    lists = {
        name: entries
        for policy in recipe.policies
        for name, entries in _named_lists(recipe, policy, names[policy]).values()
    }
    return "\n".join(constant_words(name, entries) for name, entries in lists.items())


def _named_lists(
    recipe: Recipe, policy: Policy, name: str
) -> Mapping[str, tuple[str, Sequence[str]]]:
    """Argument of ``auto_cast`` -> the constant that it is given, and what is in it; none that is empty."""
    prefix = f"{name}_" if recipe.schedule else ""
    white, black = _custom_lists(policy)
    lists = {
        "custom_white_list": (f"{prefix}WHITE_LIST", white),
        "custom_black_list": (f"{prefix}BLACK_LIST", black),
    }
    return {argument: (name, entries) for argument, (name, entries) in lists.items() if entries}


def _custom_lists(policy: Policy) -> tuple[Sequence[str], Sequence[str]]:
    if policy.level == "O0" or policy.lists == "native":
        return (), ()
    lists = paddle_lists(policy)
    return lists.white, lists.black


def _scheduled_precision(recipe: Recipe) -> str:
    names = precision_names(recipe)
    return fill(
        text.SCHEDULED_PRECISION,
        kept=eager_text.KEPT_FIELD if _keeps(recipe) else "",
        output_dtype=text.OUTPUT_DTYPE_FIELD if _returns_low(recipe) else "",
        precisions="\n".join(_precision(recipe, policy, name) for policy, name in names.items()),
    )


def _precision(recipe: Recipe, policy: Policy, name: str) -> str:
    """``name = Precision(...)`` of one policy."""
    entries = ['"enable": False']
    if policy.level != "O0":
        lists = _named_lists(recipe, policy, name)
        entries = [f'"{argument}": {constant}' for argument, (constant, _) in lists.items()]
        entries += [f'"level": "{policy.level}"', f'"dtype": "{policy.dtype}"']
    arguments: list[Item] = [Group("{", tuple(entries), "}")]
    if _kept(policy):
        arguments.append(named("kept", policy.keep))
    if policy.output_dtype != "float32":
        arguments.append(named("output_dtype", policy.output_dtype))
    if recipe.scaler is not None and policy.needs_scaling:
        arguments.append(named("scales_loss", True))
    return laid_out(Group(f"{name} = Precision(", tuple(arguments)))


def _keep_section() -> str:
    kept_layers = fill(
        eager_text.KEPT_LAYERS,
        named_layers="model.named_sublayers(include_self=True)",
        parts="layer.sublayers(include_self=True)",
    )
    return f"{text.KEEP}\n\n{kept_layers}"


# -- loss scaling

OF_GRAD_SCALER = {
    "init_scale": "init_loss_scaling",
    "growth_factor": "incr_ratio",
    "backoff_factor": "decr_ratio",
    "growth_interval": "incr_every_n_steps",
    "backoff_interval": "decr_every_n_nan_or_inf",
}


def _of_scaler(recipe: Recipe) -> Sequence[str]:
    """The numbers that ``paddle.amp.GradScaler`` is given."""
    if recipe.scaler is None or not _is_grad_scaler(recipe):
        return ()
    return tuple(OF_GRAD_SCALER) if recipe.scaler.dynamic else ("init_scale",)


def _scale_section(recipe: Recipe) -> str:
    if recipe.scaler is None:
        return ""
    if not _is_grad_scaler(recipe):
        return loss_scale_section(recipe.scaler)
    arguments = [f"{OF_GRAD_SCALER[name]}={name.upper()}" for name in _of_scaler(recipe)]
    arguments += ["use_dynamic_loss_scaling=False"] * (not recipe.scaler.dynamic)
    made = laid_out(Group("return paddle.amp.GradScaler(", tuple(arguments)), column=4)
    native = text.NATIVE_SCALING if recipe.scaler.dynamic else ""
    return program(native, fill(eager_text.SCALER, made=made))


# -- the step


def _step_section(recipe: Recipe) -> str:
    scheduled, native = recipe.schedule is not None, _is_grad_scaler(recipe)
    step = fill(
        text.STEP,
        batch="batch" if recipe.accumulate == 1 else "micro-batch",
        more_parameters=", precision" if scheduled else "",
        state=_state(recipe),
        set_precision="self.set_precision(precision)" if scheduled else "",
        set_precision_method=_set_precision_method(recipe),
        call=_call(recipe),
        forward=_forward(recipe),
        scale_method=text.SCALE_METHOD if native else "",
        state_methods=state_methods(recipe, native),
    )
    return program(
        eager_text.RESULT,
        step,
        text.UNSCALE if recipe.scaler is not None and not native else "",
        text.ADD_GRADIENTS if drops_microbatches(recipe) else "",
        text.ALL_FINITE,
    )


def _state(recipe: Recipe) -> str:
    lines = []
    if _is_grad_scaler(recipe):
        lines.append("self.scaler = scaler()")
    elif recipe.scaler is not None:
        lines.append("self.loss_scale = LossScale()")
    if recipe.accumulate > 1:
        lines.append("self.micro_batches = 0")
    if alarms(recipe):
        lines.append("self.skipped = 0")
    return "\n".join(lines)


def _set_precision_method(recipe: Recipe) -> str:
    if recipe.schedule is None:
        return ""
    keep = "keep(self.model, precision.kept)" if _keeps(recipe) else ""
    return fill(text.SET_PRECISION_METHOD, keep=keep)


def _call(recipe: Recipe) -> str:
    accumulates, scales = recipe.accumulate > 1, recipe.scaler is not None
    scale = "scale" if scales else "1.0"
    wait = fill(eager_text.WAIT, scale=scale) if accumulates else ""
    if _is_grad_scaler(recipe):
        share = "loss / ACCUMULATE" if accumulates else "loss"
        return fill(text.GRAD_SCALER_CALL, share=share, wait=wait, alarms=alarms(recipe))
    parts = {
        "present_scale": f"scale = {present_scale(recipe)}" if scales else "",
        "scale": scale,
        "backward": backward(recipe),
        "unscale": "unscale(parameters, scale)" if scales else "",
        "update": _update(recipe),
        "alarms": alarms(recipe),
    }
    if drops_microbatches(recipe):
        return fill(text.DROP_MICROBATCH_CALL, **parts)
    return fill(text.CALL, **parts, wait=wait)


def _update(recipe: Recipe) -> str:
    if recipe.scaler is None:
        return ""
    if recipe.schedule is None:
        return "self.loss_scale.update(finite)"
    return "if self.precision.scales_loss:\n    self.loss_scale.update(finite)"


def _forward(recipe: Recipe) -> str:
    returned = '"float32"'
    lines = ""
    if _returns_low(recipe):
        returned = "OUTPUT_DTYPE"
        if recipe.schedule is not None:
            returned = "dtype"
            lines = 'on_cpu = paddle.get_device() == "cpu"\n'
            lines += 'dtype = "float32" if on_cpu else self.precision.output_dtype\n'
    loss = f"loss = self.loss(cast(self.model(x), {returned}), y)"
    region = "autocast(self.precision)" if recipe.schedule else "autocast()"
    lines += f"with {region}:\n    {loss}" if _region(recipe) else loss
    return f'{lines}\nreturn loss.astype("float32")'


def _region(recipe: Recipe) -> str:
    """What the model and the loss run in; nothing in float32 alone."""
    if recipe.schedule is not None:
        return "paddle.amp.auto_cast(**precision.auto_cast)"
    if _is_float32(recipe):
        return ""
    lists = _named_lists(recipe, recipe.policy, "")
    arguments = [
        *(f"{argument}={constant}" for argument, (constant, _) in lists.items()),
        f"level={literal(recipe.policy.level)}",
        f"dtype={literal(recipe.policy.dtype)}",
    ]
    return laid_out(Group("paddle.amp.auto_cast(", tuple(arguments)), column=11)


def _autocast_section(recipe: Recipe) -> str:
    region = _region(recipe)
    if not region:
        return ""
    parameter = "precision" if recipe.schedule else ""
    return fill(eager_text.AUTOCAST, parameter=parameter, region=f"return {region}")


# -- all of it


def _decorate_section(recipe: Recipe) -> str:
    """``def decorate``: what is done to a model once; nothing where a schedule does it anew."""
    keeps = _keeps(recipe) and recipe.schedule is None
    if not keeps and not _is_decorated(recipe):
        return ""
    patterns = laid_out(
        Group("kept = keep(model, [", tuple(map(literal, _kept(recipe.policy))), "])"), column=4
    )
    assigned = patterns if _is_decorated(recipe) else patterns.removeprefix("kept = ")
    return fill(
        text.DECORATE,
        keep=assigned if keeps else "",
        decorate=laid_out(_decorate(recipe), column=4) if _is_decorated(recipe) else "",
    )


def _decorate(recipe: Recipe) -> Item:
    arguments = [
        "models=model",
        "optimizers=optimizer",
        'level="O2"',
        f"dtype={literal(recipe.policy.dtype)}",
        f"master_weight={recipe.policy.master_weights}",
    ]
    if recipe.save_dtype is not None:
        arguments.append(f"save_dtype={literal(recipe.save_dtype)}")
    if recipe.master_grad:
        arguments.append("master_grad=True")
    if _keeps(recipe):
        arguments.append("excluded_layers=kept")
    return Group("model, optimizer = paddle.amp.decorate(", tuple(arguments))


def _native(recipe: Recipe, comments: Comments, demo: bool) -> str:
    body = [
        _precision_section(recipe),
        _scale_section(recipe),
        _clip_section(recipe),
        _step_section(recipe),
        train_section(recipe) if recipe.schedule else "",
        _demo(recipe) if demo else "",
    ]
    at_the_top = numbers(recipe, comments, _of_scaler(recipe))
    header = {"usage": _usage(recipe), "saved": saved(recipe)}
    return module(text.HEADER, header, _imports, at_the_top, body, recipe, comments)


def _clip_section(recipe: Recipe) -> str:
    """Paddle's optimizers clip when they step, which is when gradients have been unscaled."""
    if recipe.clipping is None:
        return ""
    return fill(text.GRAD_CLIP, made=text.CLIP[recipe.clipping.name])


def _usage(recipe: Recipe) -> str:
    lines = [text.CLIP_USAGE] * bool(_clip_section(recipe))
    lines += [text.DECORATE_USAGE] * bool(_decorate_section(recipe))
    return "".join([*lines, eager_text.SCHEDULED_USAGE if recipe.schedule else eager_text.USAGE])


def _demo(recipe: Recipe) -> str:
    scheduled = recipe.schedule is not None
    decorate = "model, optimizer = decorate(model, optimizer)"
    main = fill(
        text.MAIN,
        decorate=decorate if _decorate_section(recipe) else "",
        more=", Schedule().precision" if scheduled else "",
    )
    clip = ", grad_clip=grad_clip()" if _clip_section(recipe) else ""
    trained = _trained_section(recipe, clip)
    return program(trained, "" if scheduled else train_section(recipe), main)


def _trained_section(recipe: Recipe, clip: str = "") -> str:
    parts = model_parts(recipe, "add_sublayer")
    return fill(text.TRAINED, **parts, clip=clip, batch_note=batch_note(recipe))


def _imports(body: str) -> str:
    lines = ["import warnings"] if "warnings.warn(" in body else []
    lines += ["from collections import namedtuple"]
    abstract = [name for name in ("Mapping", "Sequence") if f"{name}[" in body]
    lines += [f"from collections.abc import {', '.join(abstract)}"] if abstract else []
    lines += ["from fnmatch import fnmatchcase"] if "fnmatchcase(" in body else []
    lines += ["from typing import Any, NamedTuple"] if "(NamedTuple)" in body else []
    lines += [""]
    lines += ["import numpy as np"] if "np." in body else []
    lines += ["import paddle"]
    lines += ["from paddle import nn"] if "nn." in body else []
    lines += ["from paddle.amp import grad_scaler"] if "grad_scaler.float" in body else []
    return "\n".join(lines)


# -- what the code does otherwise


def _native_losses(recipe: Recipe) -> tuple[Loss, ...]:
    found: list[Loss] = []
    for policy in recipe.policies:
        if policy.level != "O0":
            found += _policy_losses(policy)
    if any(policy.level == "O2" for policy in recipe.policies):
        found += _scheduled_losses(recipe) if recipe.schedule else _o2_losses(recipe)
    return tuple(dict.fromkeys(found))


def _policy_losses(policy: Policy) -> list[Loss]:
    msg = "on CPUs Paddle has no mixed precision: everything runs in float32 there"
    found = [Loss("policy.level", "changes", msg)]
    if policy.lists != "native":
        found += _list_losses(policy)
    if policy.execution == "simulated":
        msg = "Paddle's own kernels run; low precision is not simulated"
        found.append(Loss("policy.execution", "lost", msg))
    return found


def _list_losses(policy: Policy) -> list[Loss]:
    """For ops that have no name of their own in Paddle's lists, or stand there and cannot be taken out."""
    wanted, done = wanted_rules("paddle", policy), paddle_rules(policy)
    listed = {*policy.allow, *policy.deny}
    otherwise = sorted(
        [op for op, rule in wanted.items() if done[op] != rule]
        + [op for op in listed if op not in op_table.ops() and not paddle_names(op)]
    )
    found = []
    for key in ("allow", "deny"):
        ops = [op for op in otherwise if op in getattr(policy, key)]
        if ops:
            msg = f"{', '.join(ops)}: on no list of Paddle's; the ops that they are made of go by theirs"
            found.append(Loss(f"policy.{key}", "changes", msg))
    rest = [op for op in otherwise if op not in listed]
    if rest:
        shown = ", ".join(rest[:8]) + (f" and {len(rest) - 8} more" if len(rest) > 8 else "")
        msg = f"{shown}: Paddle's custom lists cannot move them, or only with others; they go by its own"
        found.append(Loss("policy.lists", "changes", msg))
    return found


def _o2_losses(recipe: Recipe) -> list[Loss]:
    dtype = recipe.policy.dtype
    norms = "BatchNorm, LayerNorm and InstanceNorm" if dtype == "float16" else "BatchNorm"
    msg = (
        f"of normalizations Paddle holds {norms} alone in float32; and what a model is given reaches "
        "its first ops as it is"
    )
    found = [Loss("policy.level", "changes", msg)]
    summed, unscaled = recipe.accumulate > 1, recipe.scaler is not None
    if not recipe.master_grad and (summed or unscaled):
        done = " and ".join(["added"] * summed + ["unscaled"] * unscaled)
        msg = (
            f"gradients are {done} in {dtype}; with master_grad they are in float32, as in a recipe"
        )
        found.append(Loss("decorate.master_grad", "changes", msg))
    return found


def _scheduled_losses(recipe: Recipe) -> list[Loss]:
    msg = (
        "Paddle cannot take decorate back: under the schedule's O2 ops run low, but the model's "
        "weights stay float32, which ops on no list then follow"
    )
    found = [Loss("policy.level", "changes", msg)]
    for key, value in (("save_dtype", recipe.save_dtype), ("master_grad", recipe.master_grad)):
        if value not in (None, "float32", False):
            found.append(Loss(f"decorate.{key}", "lost", "it is of decorate, which is not called"))
    if any(not policy.master_weights for policy in recipe.policies):
        msg = "weights stay float32: no small update is lost"
        found.append(Loss("policy.master_weights", "changes", msg))
    return found


# -- with ampbridge


def _with_ampbridge(recipe: Recipe, comments: Comments, demo: bool) -> str:
    if not demo:
        return module_with_ampbridge(recipe, comments, "PaddlePaddle")
    imports = ["import numpy as np", "import paddle", "from paddle import nn"]
    shown = demo_section(_trained_section(recipe), "make_loss()(model(x), y)")
    return module_with_ampbridge(recipe, comments, "PaddlePaddle", imports, demo=shown)


TARGET = Target(Form(_native, _native_losses), Form(_with_ampbridge, no_losses))
