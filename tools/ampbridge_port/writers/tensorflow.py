"""Recipes as modules for TensorFlow and Keras 3.

Keras' LossScaleOptimizer takes a loss scale whose rule it has; for others a subclass of it is written,
which also accumulates gradients where an overflow drops the whole step. So ``fit`` runs with both.

O1 with TensorFlow's own lists in float16 is what TensorFlow's graph optimizer does by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import indent
from typing import Any

from ampbridge.policies import op_table
from ampbridge.policies import schedule as schedules
from ampbridge.policies.policy import Policy
from ampbridge.scaling.presets import PRESETS
from ampbridge.training.recipe import Recipe, Scaling
from ampbridge_port.writers import Comments, Form, Loss, Target
from ampbridge_port.writers import tensorflow_text as text
from ampbridge_port.writers.ampbridge import demo_section, module_with_ampbridge
from ampbridge_port.writers.code import (
    INDENT,
    Group,
    constants,
    fill,
    laid_out,
    named,
    program,
)
from ampbridge_port.writers.loop import (
    after_step,
    alarm_limits,
    batch_note,
    drops_microbatches,
    module,
    rule_in_words,
    schedule_section,
    step_numbers,
)
from ampbridge_port.writers.tensorflow_precision import (
    ACTIVATIONS,
    is_graph_optimizer,
    is_uniform,
    listed,
    low_output,
    precision_numbers,
    precision_section,
)
from ampbridge_port.writers.tensorflow_scale import build_lines, scale_numbers, update_lines

# -- what Keras does by itself


def _is_keras_scaling(recipe: Recipe) -> bool:
    """Whether Keras' LossScaleOptimizer does it, with Keras' gradient accumulation.

    It has no alarms, which is as well where nobody has asked for them.
    """
    scaling = recipe.scaler
    if scaling is None or recipe.schedule is not None:
        return False
    keras = Scaling(
        **{
            **PRESETS["keras"].settings,
            "init_scale": scaling.init_scale,
            "growth_interval": scaling.growth_interval,
        }
    )
    return scaling == keras and not _accumulates(recipe)


def _accumulates(recipe: Recipe) -> bool:
    """Whether gradients are added up by our own optimizer; Keras' drop micro-batches alone."""
    return recipe.accumulate > 1 and not drops_microbatches(recipe)


# -- the numbers


def _numbers(recipe: Recipe, comments: Comments) -> str:
    """The constants at the top, each with its origin."""
    numbers = {}
    if _is_keras_scaling(recipe):
        every = scale_numbers(recipe.scaler, comments)
        numbers = {name: every[name] for name in ("INIT_SCALE", "GROWTH_INTERVAL")}
    else:
        numbers = scale_numbers(recipe.scaler, comments)
    return constants(numbers | step_numbers(recipe, comments))


# -- the optimizer


def _optimizer_section(recipe: Recipe) -> str:
    settings = _settings(recipe)
    if _is_keras_scaling(recipe):
        return fill(text.KERAS_OPTIMIZER, settings=settings)
    accumulates = _accumulates(recipe)
    return program(
        fill(
            text.OPTIMIZER,
            settings=settings,
            initial_scale="1.0" if recipe.scaler is None else "INIT_SCALE",
            rule=_rule(recipe),
            scales_loss="scales_loss = True" if recipe.schedule else "",
            build=_build(recipe),
            scale_loss=_scale_loss(recipe),
            apply=text.ADD_UP if accumulates else _step(recipe, "trainable_variables"),
            finish=fill(text.FINISH, step=_step(recipe, "variables")) if accumulates else "",
        ),
        _check_skips(recipe),
    )


def _settings(recipe: Recipe) -> str:
    """What Keras' optimizers do by themselves, with unscaled gradients."""
    lines = [] if recipe.clipping is None else [text.CLIP[recipe.clipping.name]]
    if drops_microbatches(recipe):
        lines += ["inner.gradient_accumulation_steps = ACCUMULATE"]
    elif _accumulates(recipe):
        lines += [text.REFUSE_ACCUMULATION]
    return "\n".join(lines)


def _rule(recipe: Recipe) -> str:
    scaling = recipe.scaler
    if scaling is None:
        return "Skips steps whose gradients overflow; no loss is scaled."
    if not scaling.dynamic:
        return "Scales the loss, always alike, and skips steps whose gradients overflow."
    rule = rule_in_words(scaling).replace("It grows", "The scale grows")
    return f"Skips steps whose gradients overflow.\n\n{indent(rule, INDENT)}\n{INDENT}"


def _build(recipe: Recipe) -> str:
    lines = _counter("skips") + (_counter("skipped") if _has_alarms(recipe) else "")
    lines += build_lines(recipe.scaler) if recipe.scaler else ""
    return lines + (text.BUILD_TOTALS if _accumulates(recipe) else "")


def _counter(name: str) -> str:
    return f'self.{name} = self.add_variable((), "zeros", "int32", name="{name}")\n'


def _scale_loss(recipe: Recipe) -> str:
    accumulates = _accumulates(recipe)
    if recipe.schedule is not None:
        share = "loss / ACCUMULATE" if accumulates else "loss"
        return fill(text.SCHEDULED_SCALE_LOSS, share=share)
    return text.SCALE_LOSS if accumulates else ""


def _step(recipe: Recipe, variables: str) -> str:
    scale = "self.scale()" if recipe.schedule else "self.dynamic_scale"
    apply = f"lambda: self.inner_optimizer.apply(grads, {variables})"
    return fill(
        text.STEP,
        unscale=fill(text.UNSCALE, scale=scale) if recipe.scaler else "",
        apply=laid_out(Group("tf.cond(", ("finite", apply, "lambda: None")), column=8),
        count=text.COUNT if _has_alarms(recipe) else "",
        update=_update(recipe),
    )


def _update(recipe: Recipe) -> str:
    if recipe.scaler is None:
        return ""
    lines = update_lines(recipe.scaler)
    if recipe.schedule is None or not lines:
        return lines
    return "if self.scales_loss:\n" + indent(lines, INDENT)


def _has_alarms(recipe: Recipe) -> bool:
    """Whether many skipped steps in a row are to be told; Keras' own scaling does not count them."""
    return alarm_limits(recipe) != (None, None)


def _check_skips(recipe: Recipe) -> str:
    warn, most = alarm_limits(recipe)
    lines = [] if most is None else [fill(text.RAISE, steps=str(most))]
    lines += [] if warn is None else [fill(text.WARN_OF_SKIPS, steps=str(warn))]
    return fill(text.CHECK_SKIPS, checks="".join(lines)) if lines else ""


# -- the step


def _step_section(recipe: Recipe) -> str:
    scheduled, native = recipe.schedule is not None, _is_keras_scaling(recipe)
    step = fill(text.SCHEDULED_STEP, after_step=after_step(recipe)) if scheduled else ""
    return fill(
        text.TRAIN_STEP,
        batch="batch" if recipe.accumulate == 1 else "micro-batch",
        parameter=", schedule" if scheduled else "",
        name="traced" if scheduled else "step",
        traced_parameter=", precision" if scheduled else "",
        scale="optimizer.scale()" if scheduled else "tf.identity(optimizer.dynamic_scale)",
        before="" if native else "skips = tf.identity(optimizer.skips)",
        output="float32" if recipe.policy.output_dtype == "float32" else "output",
        overflowed="optimizer.dynamic_scale < scale" if native else "optimizer.skips > skips",
        scheduled=step,
    )


# -- a demo


def _demo(recipe: Recipe) -> str:
    main = fill(
        text.MAIN,
        schedule=", Schedule()" if recipe.schedule else "",
        check="check_skips(optimizer)" if _has_alarms(recipe) else "",
        set_precision="set_precision(model)" if _sets_precision(recipe) else "",
    )
    return f"{_trained_section(recipe)}\n\n{main}"


def _sets_precision(recipe: Recipe) -> bool:
    """Whether it is to be called once; a schedule's step calls it."""
    return recipe.schedule is None and not is_uniform(recipe)


def _trained_section(recipe: Recipe) -> str:
    return fill(text.TRAINED, layers=_layers(recipe), batch_note=batch_note(recipe))


def _layers(recipe: Recipe) -> str:
    """Those of the model that stands there at first; it has the names that the recipe keeps."""
    kept = [entry for policy in recipe.policies for entry in policy.keep]
    names = [name for name in dict.fromkeys(kept) if name.isidentifier() and name.islower()]
    hidden = ("64", 'activation="relu"')
    layers = [hidden] * max(2, len(names) - 1) + [("8",)]
    named_from_the_last = [(named("name", name),) for name in names]
    added = [*named_from_the_last, *[()] * len(layers)][: len(layers)][::-1]
    groups = [
        Group("keras.layers.Dense(", (*layer, *name))
        for layer, name in zip(layers, added, strict=True)
    ]
    return "\n".join(laid_out(group, column=12, after=1) + "," for group in groups)


# -- all of it


def _native(recipe: Recipe, comments: Comments, demo: bool) -> str:
    numbers = _numbers(recipe, comments) + precision_numbers(recipe, comments)
    body = [
        schedule_section(recipe),
        precision_section(recipe),
        _optimizer_section(recipe),
        _step_section(recipe),
        _demo(recipe) if demo else "",
    ]
    usage = {"usage": _usage(recipe)}
    return module(text.HEADER, usage, _imports, numbers, body, recipe, comments)


def _usage(recipe: Recipe) -> str:
    lines = [text.SET_PRECISION_USAGE] * _sets_precision(recipe)
    lines += [text.SCHEDULED_USAGE if recipe.schedule else text.USAGE]
    return "".join([*lines, *[text.CHECK_USAGE] * _has_alarms(recipe)])


def _imports(body: str) -> str:
    lines = ["import warnings"] if "warnings.warn(" in body else []
    lines += ["from collections import namedtuple"]
    lines += ["from collections.abc import Sequence"] if "Sequence[" in body else []
    lines += ["from fnmatch import fnmatchcase"] if "fnmatchcase(" in body else []
    lines += ["from functools import wraps"] if "wraps(" in body else []
    lines += ["from typing import NamedTuple"] if "(NamedTuple)" in body else []
    lines += ["", "import keras"]
    lines += ["import numpy as np"] if "np." in body else []
    return "\n".join([*lines, "import tensorflow as tf"])


# -- what the code does otherwise


def _native_losses(recipe: Recipe) -> tuple[Loss, ...]:
    found: list[Loss] = []
    for policy in recipe.policies:
        if policy.level != "O0" and not is_graph_optimizer(recipe):
            found += _policy_losses(policy)
    found += [*_schedule_loss(recipe), *_accumulation_loss(recipe), *_settings_losses(recipe)]
    found += _clipping_losses(recipe)
    if recipe.scaler and recipe.scaler.dynamic and recipe.scaler.at_min_scale == "raise":
        msg = "XLA drops the error of an overflow at the smallest scale: compile(jit_compile=False)"
        found.append(Loss("scaler.at_min_scale", "changes", msg))
    return tuple(dict.fromkeys(found))


def _policy_losses(policy: Policy) -> list[Loss]:
    found: list[Loss | None] = []
    if policy.level == "O1":
        msg = (
            "Keras casts layer by layer, not op by op: layers and their activations follow the op "
            "lists, functions called within a layer run in that layer's precision"
        )
        found.append(Loss("policy.level", "changes", msg))
    if policy.lists == "native":
        msg = "TensorFlow casts nothing by itself; its graph optimizer's lists are taken"
        found.append(Loss("policy.lists", "changes", msg))
    elif policy.level == "O2" and policy.lists != "tensorflow":
        msg = (
            f"ops that the lists of {policy.lists!r} deny are float32 as layers and activations; "
            "called as functions within a layer they run in that layer's precision"
        )
        found.append(Loss("policy.lists", "changes", msg))
    rounded = low_output([policy]) if policy.lists != "tensorflow" else []  # as Keras has it
    if rounded:
        msg = (
            f"in layers and models of your own class {', '.join(rounded)} return low precision, as "
            "TensorFlow's x + y takes no two; they compute in float32 inside"
        )
        found.append(Loss("policy.lists", "changes", msg))
    found += [_function_loss(key, getattr(policy, key)) for key in ("allow", "deny")]
    if policy.keep:
        msg = "the entries are matched with Keras' names of layers and with their classes"
        found.append(Loss("policy.keep", "changes", msg))
    if not policy.master_weights:
        msg = "Keras' mixed dtype policies keep float32 variables: no small update is lost"
        found.append(Loss("policy.master_weights", "changes", msg))
    if policy.execution == "simulated":
        msg = "TensorFlow's own kernels run; low precision is not simulated"
        found.append(Loss("policy.execution", "lost", msg))
    return [loss for loss in found if loss is not None]


def _function_loss(key: str, listed: Iterable[str]) -> Loss | None:
    """For listed ops that are no layer or activation, and so are up to the model's own code."""
    layers = {op for ops in op_table.native_names("keras_layers").values() for op in ops}
    functions = sorted(set(listed) - layers - ACTIVATIONS.keys())
    if key == "deny":  # losses are computed in float32 anyway
        functions = [op for op in functions if op_table.op(op).family != "loss"]
    if not functions:
        return None
    to = "float32 (set_precision warns, with the line)" if key == "deny" else "low precision"
    msg = f"{', '.join(functions)}: no layers of Keras; where your model calls them, cast to {to}"
    return Loss(f"policy.{key}", "changes", msg)


def _settings_losses(recipe: Recipe) -> list[Loss]:
    found = []
    if recipe.save_dtype not in (None, "float32"):
        msg = "Keras saves the float32 variables"
        found.append(Loss("decorate.save_dtype", "lost", msg))
    return found


def _clipping_losses(recipe: Recipe) -> list[Loss]:
    """Gradients that were added up in full are exact."""
    if recipe.clipping is None or _accumulates(recipe):
        return []
    msg = (
        "of an Embedding whose rows repeat in a batch Keras clips the gradient before it adds them "
        "up; all others are clipped as in the recipe"
    )
    return [Loss(f"step.{recipe.clipping.name}", "changes", msg)]


def _schedule_loss(recipe: Recipe) -> list[Loss]:
    if len({policy.output_dtype for policy in recipe.policies}) == 1:
        return []
    msg = (
        f"under every policy of the schedule it is {recipe.policy.output_dtype}, that of the first"
    )
    return [Loss("policy.output_dtype", "changes", msg)]


def _accumulation_loss(recipe: Recipe) -> list[Loss]:
    if recipe.scaler is None or not drops_microbatches(recipe):
        return []
    msg = (
        "Keras scales the loss of a micro-batch before it averages, where a recipe scales its share: "
        f"gradients overflow from a {recipe.accumulate}th of the scale on"
    )
    return [Loss("step.accumulate", "changes", msg)]


# -- with ampbridge


def _with_ampbridge(recipe: Recipe, comments: Comments, demo: bool) -> str:
    trained = _trained_section(recipe)
    loss = "make_loss()(y, model(x, training=True))"
    fit = _fit_section(recipe)
    return module_with_ampbridge(
        _honoured(recipe),
        comments,
        "TensorFlow, Keras 3",
        ["import ampbridge_tensorflow"] * bool(fit) + ["import keras", "import numpy as np"] * demo,
        fit=fit,
        demo=demo_section(trained, loss, model="") if demo else "",
    )


def _fit_section(recipe: Recipe) -> str:
    """``def compile_model``; none where fit drops micro-batches, and the recipe whole steps."""
    if _accumulates(recipe):
        return ""
    scheduled = recipe.schedule is not None
    settings = _settings(recipe).replace("inner.", "optimizer.")
    for name in ("ACCUMULATE", *(clipping.upper() for clipping in text.CLIP)):
        settings = settings.replace(name, f"RECIPE.{name.lower()}")
    unscaled = "amp.GradScaler(init_scale=1.0, dynamic=False)  # which skips what overflows"
    return fill(
        text.COMPILE,
        and_how=text.WITH_CALLBACK if scheduled else "",
        decorate="" if scheduled else "amp.decorate(model, policy=RECIPE.policy)",
        settings=settings,
        scaler="RECIPE.scaler.make()" if recipe.scaler else unscaled,
    )


def _honoured(recipe: Recipe) -> Recipe:
    """What ampbridge does of it on TensorFlow."""
    if recipe.save_dtype not in (None, "float32"):
        recipe = recipe.replace(save_dtype=None)
    if recipe.schedule is None:
        return recipe.replace(policy=listed(recipe.policy))
    plan = schedules.from_dict(_listed_throughout(recipe.schedule.to_dict()))
    return recipe.replace(policy=Policy(), schedule=plan)


def _listed_throughout(data: Any) -> Any:
    """A schedule's data with op lists in each policy."""
    if isinstance(data, dict) and "level" in data:
        return listed(Policy.from_dict(data)).to_dict()
    if isinstance(data, dict):
        return {key: _listed_throughout(value) for key, value in data.items()}
    return [_listed_throughout(value) for value in data] if isinstance(data, list) else data


def _losses_with_ampbridge(recipe: Recipe) -> tuple[Loss, ...]:
    found = _settings_losses(recipe)
    if any(policy.lists == "native" and policy.level != "O0" for policy in recipe.policies):
        msg = "TensorFlow casts nothing by itself; its graph optimizer's lists are taken"
        found.append(Loss("policy.lists", "changes", msg))
    return tuple(found)


TARGET = Target(Form(_native, _native_losses), Form(_with_ampbridge, _losses_with_ampbridge))
