"""Recipes as programs for TensorFlow and Keras 3.

A loss scale that Keras' LossScaleOptimizer does not know is written out, as are schedules, and the
accumulation of gradients where an overflow drops the whole step.

O1 with TensorFlow's own lists in float16 is what TensorFlow's graph optimizer does by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ampbridge.policies import op_table
from ampbridge.policies import schedule as schedules
from ampbridge.policies.policy import Policy
from ampbridge.port.writers import Comments, Form, Loss, Target
from ampbridge.port.writers import tensorflow_text as text
from ampbridge.port.writers.ampbridge import recipe_code
from ampbridge.port.writers.code import (
    Group,
    constants,
    fill,
    float32_number,
    laid_out,
    named,
    number,
    program,
    recipe_comment,
)
from ampbridge.port.writers.loop import (
    batch_note,
    drops_microbatches,
    train_section,
    whole_program,
)
from ampbridge.port.writers.tensorflow_precision import (
    ACTIVATIONS,
    is_graph_optimizer,
    is_uniform,
    listed,
    precision_section,
)
from ampbridge.port.writers.tensorflow_scale import loss_scale_class
from ampbridge.scaling.presets import PRESETS
from ampbridge.training.recipe import Recipe, Scaling

# -- what Keras does by itself


def _is_keras_scaling(recipe: Recipe) -> bool:
    """Whether Keras' LossScaleOptimizer does it, with Keras' gradient accumulation."""
    scaling = recipe.scaler
    if scaling is None or recipe.schedule is not None:
        return False
    keras = Scaling(
        **{
            **PRESETS["keras"].settings,
            "init_scale": scaling.init_scale,
            "growth_interval": scaling.growth_interval,
            "warn_after_skips": scaling.warn_after_skips,
            "max_consecutive_skips": scaling.max_consecutive_skips,
        }
    )
    return scaling == keras and not _accumulates(recipe)


def _accumulates(recipe: Recipe) -> bool:
    """Whether gradients are added up by the program; Keras' optimizers drop micro-batches alone."""
    return recipe.accumulate > 1 and not drops_microbatches(recipe)


# -- the sections of a program


def _scale_section(recipe: Recipe, comments: Comments) -> str:
    if recipe.scaler is None or _is_keras_scaling(recipe):
        return ""
    return loss_scale_class(recipe.scaler, comments)


def _trained_section(recipe: Recipe) -> str:
    return fill(
        text.TRAINED,
        layers=_layers(recipe),
        optimizer=_optimizer(recipe),
        batch_note=batch_note(recipe),
    )


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


def _optimizer(recipe: Recipe) -> str:
    """Keras' optimizers are given unscaled gradients; they clip what they have accumulated."""
    arguments = ["learning_rate"]
    if recipe.clip_norm is not None:
        arguments.append(f"global_clipnorm={number(recipe.clip_norm)}")
    if drops_microbatches(recipe):
        arguments.append(f"gradient_accumulation_steps={recipe.accumulate}")
    return laid_out(Group("return keras.optimizers.SGD(", tuple(arguments)), column=4)


# -- the step


def _step_section(recipe: Recipe, comments: Comments) -> str:
    if _is_keras_scaling(recipe):
        assert recipe.scaler is not None
        return program(
            "# -- The step\n",
            text.RESULT,
            fill(
                text.KERAS_STEP,
                init_scale=float32_number(recipe.scaler.init_scale),
                growth_interval=str(recipe.scaler.growth_interval),
                output_dtype=_output_dtype(recipe),
            ),
        )
    step = fill(
        text.STEP,
        batch="batch" if recipe.accumulate == 1 else "micro-batch",
        more_parameters=", precision" if recipe.schedule else "",
        state=_state(recipe),
        set_precision="self.set_precision(precision)" if recipe.schedule else "",
        set_precision_method=_set_precision_method(recipe),
        call=_call(recipe),
        share=", one micro-batch's share of them" if _accumulates(recipe) else "",
        output_dtype=_output_dtype(recipe),
        scaled_loss=_scaled_loss(recipe),
        present_scale=_present_scale_method(recipe),
    )
    numbers = {}
    if _accumulates(recipe):
        numbers["ACCUMULATE"] = (str(recipe.accumulate), comments.get("step.accumulate", ""))
    return program("# -- The step\n", constants(numbers), text.RESULT, step, text.ALL_FINITE)


def _output_dtype(recipe: Recipe) -> str:
    return f"tf.{recipe.policy.output_dtype}"


def _state(recipe: Recipe) -> str:
    lines = [] if recipe.scaler is None else ["self.loss_scale = LossScale()"]
    if _accumulates(recipe):
        totals = "[tf.Variable(tf.zeros(v.shape)) for v in model.trainable_variables]"
        lines += [f"self.totals = {totals}", "self.micro_batches = 0"]
    return "\n".join(lines)


def _set_precision_method(recipe: Recipe) -> str:
    if recipe.schedule is None:
        return ""
    names = ["add", "last"] if _accumulates(recipe) else ["run"]
    retrace = "\n".join(f"self.{name} = tf.function(self.{name}_batch)" for name in names)
    return fill(text.SET_PRECISION_METHOD, retrace=retrace)


def _call(recipe: Recipe) -> str:
    """The methods that run a batch: traced by decorator, or anew for each precision of a schedule."""
    scheduled = recipe.schedule is not None
    parts = {
        "decorator": "" if scheduled else "@tf.function",
        "scale": _scale(recipe),
        "update": _update(recipe),
    }
    if _accumulates(recipe):
        suffix = "_batch" if scheduled else ""
        names = {"add_name": f"add{suffix}", "last_name": f"last{suffix}"}
        scale = _present_scale(recipe)
        return fill(text.ACCUMULATING_CALL, **parts, **names, present_scale=scale)
    waits = drops_microbatches(recipe)
    run = fill(
        text.CALL,
        **parts,
        name="run_batch" if scheduled else "__call__",
        before="steps = tf.identity(self.optimizer.iterations)" if waits else "",
        after="applied = self.optimizer.iterations > steps" if waits else "",
        applied="applied" if waits else "applied=finite",
    )
    return f"{text.SCHEDULED_CALL}\n{run}" if scheduled else run


def _present_scale(recipe: Recipe) -> str:
    if recipe.scaler is None:
        return "tf.constant(1.0)"
    return "self.present_scale()" if recipe.schedule else "tf.identity(self.loss_scale.value)"


def _present_scale_method(recipe: Recipe) -> str:
    return text.PRESENT_SCALE if recipe.schedule and recipe.scaler is not None else ""


def _scale(recipe: Recipe) -> str:
    """The scale of this step, and gradients without it."""
    lines = f"scale = {_present_scale(recipe)}\n"
    if recipe.scaler is not None:
        lines += "gradients = [gradient / scale for gradient in gradients]\n"
    return lines


def _scaled_loss(recipe: Recipe) -> str:
    scale = "self.present_scale()" if recipe.schedule else "self.loss_scale.value"
    if recipe.scaler is None:
        return "loss / ACCUMULATE" if _accumulates(recipe) else "loss"
    return f"loss * ({scale} / ACCUMULATE)" if _accumulates(recipe) else f"loss * {scale}"


def _update(recipe: Recipe) -> str:
    if recipe.scaler is None:
        return ""
    if recipe.schedule is None:
        return "self.loss_scale.update(finite)"
    return "if self.precision.scales_loss:\n    self.loss_scale.update(finite)"


# -- all of it


def _main_section(recipe: Recipe) -> str:
    scheduled = recipe.schedule is not None
    uniform = scheduled or is_uniform(recipe)
    return fill(
        text.MAIN,
        set_precision="" if uniform else "set_precision(model, PRECISION)",
        more=", Schedule().precision" if scheduled else "",
    )


def _native(recipe: Recipe, comments: Comments) -> str:
    body = [
        _trained_section(recipe),
        precision_section(recipe),
        _scale_section(recipe, comments),
        _step_section(recipe, comments),
        train_section(recipe),
        _main_section(recipe),
    ]
    return whole_program(text.HEADER, _imports, body, recipe, comments)


def _imports(body: str) -> str:
    lines = ["import warnings"] if "warnings.warn(" in body else []
    lines += ["from collections.abc import Sequence"] if "Sequence[" in body else []
    lines += ["from fnmatch import fnmatchcase"] if "fnmatchcase(" in body else []
    lines += ["from typing import NamedTuple", "", "import keras", "import numpy as np"]
    return "\n".join([*lines, "import tensorflow as tf"])


# -- what the code does otherwise


def _native_losses(recipe: Recipe) -> tuple[Loss, ...]:
    found: list[Loss] = []
    for policy in recipe.policies:
        if policy.level != "O0" and not is_graph_optimizer(recipe):
            found += _policy_losses(policy)
    found += [*_schedule_loss(recipe), *_accumulation_loss(recipe), *_settings_losses(recipe)]
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
    wrapped = "through InFloat32" if key == "deny" else "on tensors cast to the low precision"
    msg = (
        f"{', '.join(functions)}: no layers of Keras; where your model calls them, do it {wrapped}"
    )
    return Loss(f"policy.{key}", "changes", msg)


def _settings_losses(recipe: Recipe) -> list[Loss]:
    found = []
    if recipe.save_dtype not in (None, "float32"):
        msg = "Keras saves the float32 variables"
        found.append(Loss("decorate.save_dtype", "lost", msg))
    return found


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


def _with_ampbridge(recipe: Recipe, comments: Comments) -> str:
    return fill(
        text.WITH_AMPBRIDGE,
        recipe_comment=recipe_comment(recipe, comments),
        recipe=f"RECIPE = {recipe_code(_honoured(recipe), before='RECIPE = ')}",
        trained=fill(
            text.TRAINED,
            layers=_layers(recipe),
            optimizer="return keras.optimizers.SGD(learning_rate)",
            batch_note=batch_note(recipe),
        ),
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
