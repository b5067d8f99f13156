"""Recipes as modules for torch.

``torch.autocast`` casts op by op, on CUDA by the lists of the list set "torch". Where a recipe says
otherwise, a function mode on top of it casts for the functions in question. At O2 the model is called
with low copies of its weights: what it and its optimizer hold are the float32 masters, and gradients
reach them through the copies. A loss scale that ``torch.amp.GradScaler`` does not know is written out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ampbridge.policies import op_table
from ampbridge.policies.op_table import Category
from ampbridge.policies.policy import Policy
from ampbridge.scaling.presets import PRESETS
from ampbridge.training.recipe import Recipe, Scaling
from ampbridge_port.writers import Comments, Form, Loss, Target, eager_text
from ampbridge_port.writers import torch_text as text
from ampbridge_port.writers.ampbridge import demo_section, module_with_ampbridge, no_losses
from ampbridge_port.writers.code import (
    Group,
    Item,
    constant_words,
    fill,
    laid_out,
    named,
    program,
    words,
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

# Other names of functions that a mode sees: of `1 - x`, `2**x`, `2 / x`, and in torch.nn.functional.
OTHER_NAMES = {
    "sub": "__rsub__",
    "pow": "__rpow__",
    "reciprocal": "__rdiv__",
    "logsigmoid": "log_sigmoid",
    "threshold": "_threshold",
}

# -- what goes into the code


def _is_grad_scaler(recipe: Recipe) -> bool:
    """Whether ``torch.amp.GradScaler`` does it: one check for each step, and torch's rule."""
    scaling = recipe.scaler
    if scaling is None or recipe.schedule is not None or drops_microbatches(recipe):
        return False
    if scaling.growth_factor == 1.0 or scaling.backoff_factor == 1.0:
        return False
    names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    alarms = ("warn_after_skips", "max_consecutive_skips")
    of_torch = {
        **PRESETS["torch"].settings,
        **{name: getattr(scaling, name) for name in (*names, *alarms)},
    }
    return scaling == Scaling(**of_torch)


def _functions(policy: Policy) -> Mapping[Category, list[str]]:
    """The functions that autocast runs otherwise on CUDA, by what they are to do."""
    found: dict[Category, list[str]] = {"allow": [], "deny": [], "promote": []}
    if policy.level == "O0" or policy.lists == "native":
        return found
    own = Policy("O1", policy.dtype, lists="torch").native_rules("torch")
    differing = {
        _function_name(spelling): rule
        for spelling, rule in policy.native_rules("torch").items()
        if rule != own[spelling]
    }
    for name, rule in differing.items():
        found[rule] += [name, *([OTHER_NAMES[name]] if name in OTHER_NAMES else [])]
    return {rule: sorted(set(names)) for rule, names in found.items()}


def _function_name(spelling: str) -> str:
    """The ``__name__`` of a function: that of ``torch.linalg.norm`` is ``linalg_norm``."""
    _, _, rest = spelling.partition(".")
    namespace, _, name = rest.rpartition(".")
    if namespace == "sparse":
        return f"_sparse_{name}"
    return f"{namespace}_{name}" if namespace in ("linalg", "special", "fft") else name


def _has_lists(recipe: Recipe) -> bool:
    return any(any(_functions(policy).values()) for policy in recipe.policies)


def _kept(policy: Policy) -> Sequence[str]:
    return policy.keep if policy.level != "O0" else ()


def _keeps(recipe: Recipe) -> bool:
    return any(map(_kept, recipe.policies))


def _casts_weights(recipe: Recipe) -> bool:
    return any(policy.level == "O2" for policy in recipe.policies)


def _rounds_weights(recipe: Recipe) -> bool:
    return any(policy.level == "O2" and not policy.master_weights for policy in recipe.policies)


def _output_dtypes_differ(recipe: Recipe) -> bool:
    return len({policy.output_dtype for policy in recipe.policies}) > 1


def _saves_low(recipe: Recipe) -> bool:
    """What is saved is cast at O2 alone."""
    return recipe.schedule is None and _casts_weights(recipe) and recipe.save_dtype is not None


# -- precision


def _precision_numbers(recipe: Recipe) -> str:
    """The constants of it, where no schedule changes it."""
    if recipe.schedule is not None:
        return ""
    groups = {**_function_groups(recipe.policy), "kept": _kept(recipe.policy)}
    return "".join(
        f"{constant_words(name.upper(), group)}\n" for name, group in groups.items() if group
    )


def _function_groups(policy: Policy) -> Mapping[str, Sequence[str]]:
    functions = _functions(policy)
    return {
        "low_functions": functions["allow"],
        "float32_functions": functions["deny"],
        "widest_functions": functions["promote"],
    }


def _precision_section(recipe: Recipe) -> str:
    with_lists, keeps = _has_lists(recipe), _keeps(recipe)
    return program(
        _scheduled_precision(recipe) if recipe.schedule else "",
        schedule_section(recipe),
        _op_lists_section(recipe) if with_lists else "",
        _keep_section() if keeps else "",
        _low_weights_section(recipe) if _casts_weights(recipe) else "",
        _autocast_section(recipe),
        text.CAST,
    )


def _scheduled_precision(recipe: Recipe) -> str:
    return fill(
        text.PRECISION,
        functions=text.FUNCTION_FIELDS if _has_lists(recipe) else "",
        low_weights=text.LOW_WEIGHTS_FIELD if _casts_weights(recipe) else "",
        master_weights=text.MASTER_WEIGHTS_FIELD if _rounds_weights(recipe) else "",
        kept=eager_text.KEPT_FIELD if _keeps(recipe) else "",
        output_dtype=text.OUTPUT_DTYPE_FIELD if _output_dtypes_differ(recipe) else "",
        scales_loss=text.SCALES_LOSS_FIELD,
        precisions=_precisions(recipe),
    )


def _op_lists_section(recipe: Recipe) -> str:
    if recipe.schedule is not None:
        return fill(text.OP_LISTS, lists="a precision names", dtypes=text.SCHEDULED_DTYPES)
    dtypes = {
        "low_functions": f", torch.{recipe.policy.dtype}",
        "float32_functions": ", torch.float32",
        "widest_functions": "",
    }
    entries = tuple(
        f"**dict.fromkeys({name.upper()}{dtypes[name]})"
        for name, group in _function_groups(recipe.policy).items()
        if group
    )
    dtypes_of_names = laid_out(Group("dtypes = {", entries, "}"), column=4)
    return fill(text.OP_LISTS, lists="are listed above", dtypes=dtypes_of_names)


def _keep_section() -> str:
    kept_layers = fill(
        eager_text.KEPT_LAYERS, named_layers="model.named_modules()", parts="layer.modules()"
    )
    return f"{text.KEEP}\n\n{kept_layers}"


def _low_weights_section(recipe: Recipe) -> str:
    keeps, scheduled = _keeps(recipe), recipe.schedule is not None
    early = "if not precision.low_weights:\n    return {}"
    kept = "precision.kept" if scheduled else "KEPT"
    return fill(
        text.LOW_WEIGHTS,
        parameter=", precision" if scheduled else "",
        and_kept=" and kept layers" if keeps else "",
        early=early if scheduled else "",
        kept=f"layers += kept_layers(model, {kept})" if keeps else "",
    )


def _precisions(recipe: Recipe) -> str:
    names = precision_names(recipe)
    return "\n".join(_precision(recipe, policy, name) for policy, name in names.items())


def _precision(recipe: Recipe, policy: Policy, name: str) -> str:
    """``name = Precision(...)`` of one policy; what is as usual is left out."""
    groups = _function_groups(policy).items()
    arguments: list[Item] = [f"torch.{policy.dtype}"]
    arguments += [words(name, group) for name, group in groups if group]
    if policy.level == "O2":
        arguments.append(named("low_weights", True))
        if not policy.master_weights:
            arguments.append(named("master_weights", False))
    if _kept(policy):
        arguments.append(named("kept", policy.keep))
    if _output_dtypes_differ(recipe) and policy.output_dtype != "float32":
        arguments.append(f"output_dtype=torch.{policy.output_dtype}")
    if recipe.schedule and recipe.scaler is not None and policy.needs_scaling:
        arguments.append(named("scales_loss", True))
    return laid_out(Group(f"{name} = Precision(", tuple(arguments)))


# -- loss scaling

OF_GRAD_SCALER = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")


def _scale_section(recipe: Recipe) -> str:
    if recipe.scaler is None:
        return ""
    if not _is_grad_scaler(recipe):
        return loss_scale_section(recipe.scaler)
    arguments = ("DEVICE", *(f"{name}={name.upper()}" for name in OF_GRAD_SCALER))
    made = laid_out(Group("return torch.amp.GradScaler(", arguments), column=4)
    return fill(eager_text.SCALER, made=made)


# -- the step


def _step_section(recipe: Recipe) -> str:
    native = _is_grad_scaler(recipe)
    step = fill(
        text.STEP,
        batch="batch" if recipe.accumulate == 1 else "micro-batch",
        more_parameters=", precision" if recipe.schedule else "",
        state=_state(recipe),
        set_precision="self.set_precision(precision)" if recipe.schedule else _precise(recipe),
        set_precision_method=_set_precision_method(recipe) if recipe.schedule else "",
        call=_call(recipe),
        forward=_forward(recipe),
        predictions_method=_predictions_method(recipe),
        round_method=fill(text.ROUND_METHOD, dtype=_dtype(recipe))
        if _rounds_weights(recipe)
        else "",
        state_methods=state_methods(recipe, native),
    )
    return program(
        eager_text.RESULT,
        step,
        "" if native else text.ALL_FINITE,
        fill(text.SAVE_DTYPE, dtype=recipe.save_dtype or "") if _saves_low(recipe) else "",
    )


def _dtype(recipe: Recipe) -> str:
    """The low precision, in a method of a step."""
    return "self.precision.dtype" if recipe.schedule else f"torch.{recipe.policy.dtype}"


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
    if _saves_low(recipe):
        lines.append("model.register_state_dict_post_hook(save_low)")
    return "\n".join(lines)


def _set_precision_method(recipe: Recipe) -> str:
    return fill(text.SET_PRECISION_METHOD, precise=_precise(recipe))


def _precise(recipe: Recipe) -> str:
    """What a step does to a model for its precision."""
    scheduled = recipe.schedule is not None
    kept = "precision.kept" if scheduled else "KEPT"
    argument = ", precision" if scheduled else ""
    lines = [f"keep(self.model, {kept})"] * _keeps(recipe)
    lines += [f"self.weights = weights_to_cast(self.model{argument})"] * _casts_weights(recipe)
    return "\n".join([*lines, _round(recipe)])


def _round(recipe: Recipe) -> str:
    if not _rounds_weights(recipe):
        return ""
    always = recipe.schedule is None
    return (
        "self.round_weights()"
        if always
        else "if not self.precision.master_weights:\n    self.round_weights()"
    )


def _call(recipe: Recipe) -> str:
    if _is_grad_scaler(recipe):
        return _grad_scaler_call(recipe)
    scales = recipe.scaler is not None
    parts = {
        "present_scale": f"scale = {present_scale(recipe)}" if scales else "",
        "scale": "scale" if scales else "1.0",
        "backward": backward(recipe),
        "unscale": text.UNSCALE if scales else "",
        "clip": _clip(recipe),
        "round": _round(recipe),
        "update": _update(recipe),
        "alarms": alarms(recipe),
    }
    if drops_microbatches(recipe):
        return fill(text.DROP_MICROBATCH_CALL, **parts)
    wait = fill(eager_text.WAIT, scale=parts["scale"]) if recipe.accumulate > 1 else ""
    return fill(text.CALL, **parts, wait=wait)


def _grad_scaler_call(recipe: Recipe) -> str:
    clip = f"self.scaler.unscale_(self.optimizer)\n{_clip(recipe)}"
    accumulates = recipe.accumulate > 1
    return fill(
        text.GRAD_SCALER_CALL,
        share="loss / ACCUMULATE" if accumulates else "loss",
        wait=fill(eager_text.WAIT, scale="scale") if accumulates else "",
        clip=clip if recipe.clipping else "",
        round=_round(recipe),
        alarms=alarms(recipe),
    )


def _clip(recipe: Recipe) -> str:
    return "" if recipe.clipping is None else text.CLIP[recipe.clipping.name]


def _update(recipe: Recipe) -> str:
    if recipe.scaler is None:
        return ""
    if recipe.schedule is None:
        return "self.loss_scale.update(finite)"
    return "if self.precision.scales_loss:\n    self.loss_scale.update(finite)"


def _forward(recipe: Recipe) -> str:
    model = "self.predictions(x)" if _casts_weights(recipe) else "self.model(x)"
    returned = f"torch.{recipe.policy.output_dtype}"
    if _output_dtypes_differ(recipe):
        returned = "self.precision.output_dtype"
    loss = f"loss = self.loss(cast({model}, {returned}), y)"
    if not _region(recipe):
        return f"{loss}\nreturn loss.float()"
    region = "autocast(self.precision)" if recipe.schedule else "autocast()"
    return f"with {region}:\n    {loss}\nreturn loss.float()"


def _autocast_section(recipe: Recipe) -> str:
    """``def autocast``; none where everything is float32."""
    region = _region(recipe)
    if not region:
        return ""
    parameter = "precision" if recipe.schedule else ""
    enabled = "enabled = precision.dtype is not torch.float32\n" * ("enabled" in region)
    returned, decorator = f"return {region}", ""
    if _has_lists(recipe):
        returned, decorator = (
            f"with {region}, OpLists({parameter}):\n    yield",
            "@contextmanager\n",
        )
    return decorator + fill(eager_text.AUTOCAST, parameter=parameter, region=enabled + returned)


def _region(recipe: Recipe) -> str:
    """What torch is told of the precision; nothing in float32 alone."""
    if all(policy.level == "O0" for policy in recipe.policies):
        return ""
    if recipe.schedule is None:
        return f"torch.autocast(DEVICE, dtype=torch.{recipe.policy.dtype})"
    switched = any(policy.level == "O0" for policy in recipe.policies)
    enabled = ", enabled=enabled" if switched else ""
    return f"torch.autocast(DEVICE, dtype=precision.dtype{enabled})"


def _predictions_method(recipe: Recipe) -> str:
    if not _casts_weights(recipe):
        return ""
    early = "if not self.precision.low_weights:\n    return self.model(x)"
    return fill(
        text.PREDICTIONS_METHOD, early=early if recipe.schedule else "", dtype=_dtype(recipe)
    )


# -- all of it


def _native(recipe: Recipe, comments: Comments, demo: bool) -> str:
    body = [
        _precision_section(recipe),
        _scale_section(recipe),
        _step_section(recipe),
        train_section(recipe) if recipe.schedule else "",
        _demo(recipe) if demo else "",
    ]
    of_scaler = OF_GRAD_SCALER if _is_grad_scaler(recipe) else ()
    at_the_top = numbers(recipe, comments, of_scaler) + _precision_numbers(recipe)
    header = {"usage": _usage(recipe), "saved": saved(recipe)}
    return module(text.HEADER, header, _imports, at_the_top, body, recipe, comments)


def _usage(recipe: Recipe) -> str:
    if recipe.schedule is not None:
        return eager_text.SCHEDULED_USAGE
    return eager_text.USAGE


def _demo(recipe: Recipe) -> str:
    scheduled = recipe.schedule is not None
    main = fill(text.MAIN, more=", Schedule().precision" if scheduled else "")
    return program(_trained_section(recipe), "" if scheduled else train_section(recipe), main)


def _trained_section(recipe: Recipe) -> str:
    parts = model_parts(recipe, "add_module")
    return fill(text.TRAINED, **parts, batch_note=batch_note(recipe))


def _imports(body: str) -> str:
    lines = ["import warnings"] if "warnings.warn(" in body else []
    lines += ["from collections import namedtuple"]
    lines += ["from collections.abc import Sequence"] if "Sequence[" in body else []
    lines += ["from contextlib import contextmanager"] if "@contextmanager" in body else []
    lines += ["from fnmatch import fnmatchcase"] if "fnmatchcase(" in body else []
    lines += ["from typing import NamedTuple"] if "(NamedTuple)" in body else []
    lines += [""]
    lines += ["import numpy as np"] if "np." in body else []
    lines += ["import torch"]
    lines += ["from torch import nn"] if "nn." in body else []
    lines += ["from torch.func import functional_call"] if "functional_call(" in body else []
    mode = "from torch.overrides import TorchFunctionMode"
    lines += [mode] if "TorchFunctionMode" in body else []
    return "\n".join(lines)


# -- what the code does otherwise


def _native_losses(recipe: Recipe) -> tuple[Loss, ...]:
    found: list[Loss] = []
    for policy in recipe.policies:
        if policy.level != "O0":
            found += _policy_losses(policy)
    if recipe.save_dtype is not None and recipe.schedule and _casts_weights(recipe):
        msg = "state_dict holds float32, under every policy of the schedule"
        found.append(Loss("decorate.save_dtype", "lost", msg))
    return tuple(dict.fromkeys(found))


def _policy_losses(policy: Policy) -> list[Loss]:
    found = []
    if policy.lists != "native":
        msg = (
            "on CPUs torch.autocast has lists of its own: softmax, layer_norm, sum and others run in "
            "the precision that arrives there; on CUDA they run as in the recipe"
        )
        found.append(Loss("policy.lists", "changes", msg))
    if any(_functions(policy).values()):
        msg = (
            "functions that are called within another function of torch, as softmax is within "
            "multi_head_attention_forward, go by the lists of torch.autocast"
        )
        found.append(Loss("policy.lists", "changes", msg))
    if policy.lists != "native" and policy.op_list.unlisted == "full":
        msg = "functions that are in no op table follow their inputs, where the recipe has float32"
        found.append(Loss("policy.lists", "changes", msg))
    found += _nameless_losses(policy)
    if policy.level == "O2" and not policy.master_weights:
        msg = (
            f"weights are rounded to {policy.dtype} after each step, so that small updates are lost; "
            "the optimizer computes in float32, and memory is not saved"
        )
        found.append(Loss("policy.master_weights", "changes", msg))
    if policy.execution == "simulated":
        msg = "torch's own kernels run; low precision is not simulated"
        found.append(Loss("policy.execution", "lost", msg))
    return found


def _nameless_losses(policy: Policy) -> list[Loss]:
    """For listed ops that torch has under no name of its own."""
    found = []
    for key in ("allow", "deny"):
        missing = [op for op in getattr(policy, key) if not op_table.op(op).names.get("torch")]
        if missing:
            msg = f"{', '.join(missing)}: no function of torch; its parts go by their own rules"
            found.append(Loss(f"policy.{key}", "changes", msg))
    return found


# -- with ampbridge


def _with_ampbridge(recipe: Recipe, comments: Comments, demo: bool) -> str:
    if not demo:
        return module_with_ampbridge(recipe, comments, "PyTorch")
    imports = ["import numpy as np", "import torch", "from torch import nn"]
    trained = f"{text.DEVICE}\n\n{_trained_section(recipe)}"
    shown = demo_section(trained, "make_loss()(model(x), y)", device=".to(DEVICE)")
    return module_with_ampbridge(recipe, comments, "PyTorch", imports, demo=shown)


TARGET = Target(Form(_native, _native_losses), Form(_with_ampbridge, no_losses))
