"""Recipes as programs for TensorFlow and Keras 3.

Keras casts layer by layer, by dtype policies; ampbridge, torch and Paddle cast op by op. So the op
lists of a recipe become the precision of layers and activations: denied ones compute in float32,
others in low precision, and at O1 those without weights take what arrives. A loss scale that Keras'
LossScaleOptimizer does not know is written out, as are accumulation and schedules.

O1 with TensorFlow's own lists in float16 is what TensorFlow's graph optimizer does by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ampbridge import oplists
from ampbridge.policy import Policy
from ampbridge.port.targets import Comments, Form, Loss, Target
from ampbridge.port.targets import tensorflow_text as text
from ampbridge.port.targets.ampbridge import recipe_code
from ampbridge.port.targets.code import (
    Group,
    Item,
    constants,
    fill,
    float32_number,
    laid_out,
    literal,
    named,
    number,
    program,
    recipe_comment,
    words,
)
from ampbridge.presets import PRESETS
from ampbridge.recipe import Recipe, Scaling

# Layers that hold weights. At O1 weights are float32, and an op that takes the widest of its inputs is
# float32 with them; batch normalization goes by its input alone, in torch and in Paddle.
WITH_WEIGHTS = frozenset(
    (
        *("Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"),
        *("DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D"),
        *("ConvLSTM2D", "GRU", "GRUCell", "LSTM", "LSTMCell", "SimpleRNN", "SimpleRNNCell"),
        *("Dense", "EinsumDense", "Embedding", "GroupQueryAttention", "MultiHeadAttention"),
        *("GroupNormalization", "LayerNormalization", "RMSNormalization", "PReLU"),
    )
)

# Functions of keras.activations, by the canonical name of their op.
ACTIVATIONS = {
    **{
        name: name
        for name in (
            *(
                "celu",
                "elu",
                "gelu",
                "glu",
                "hard_shrink",
                "hard_sigmoid",
                "hard_tanh",
                "leaky_relu",
            ),
            *(
                "log_sigmoid",
                "log_softmax",
                "relu",
                "relu6",
                "selu",
                "sigmoid",
                "silu",
                "soft_shrink",
            ),
            *("softmax", "softplus", "softsign", "tanh", "tanh_shrink", "threshold"),
        )
    },
    "hard_swish": "hard_silu",
    "exp": "exponential",
}


# -- what goes into the code


def _is_graph_optimizer(recipe: Recipe) -> bool:
    """Whether it is what TensorFlow's graph optimizer does by itself."""
    plain = Policy("O1", "float16", lists="tensorflow", output_dtype=recipe.policy.output_dtype)
    return recipe.schedule is None and recipe.policy == plain


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


def _listed(policy: Policy) -> Policy:
    """The policy with op lists; TensorFlow has none but those of its graph optimizer."""
    return policy.replace(lists="tensorflow") if policy.lists == "native" else policy


def _float32_layers(policy: Policy) -> list[str]:
    """The classes of layers that compute in float32."""
    rules = _listed(policy).native_rules("keras_layers")
    denied = {name for name, rule in rules.items() if rule == "deny"}
    if policy.level == "O1":
        promoted = {name for name, rule in rules.items() if rule == "promote"}
        denied |= promoted & WITH_WEIGHTS
    return sorted(denied)


def _following_layers(policy: Policy) -> list[str]:
    """The classes of layers that take the precision that arrives: at O1, those without weights."""
    if policy.level == "O2":
        return []
    rules = _listed(policy).native_rules("keras_layers")
    promoted = {name for name, rule in rules.items() if rule == "promote"}
    return sorted({"Model", *promoted} - WITH_WEIGHTS - {"BatchNormalization"})


def _float32_activations(policy: Policy) -> list[str]:
    policy = _listed(policy)
    return sorted(name for op, name in ACTIVATIONS.items() if policy.category(op) == "deny")


def _precision(name: str, policy: Policy, scales_loss: bool | None) -> str:
    """``name = Precision(...)`` of one policy."""
    arguments: list[Item] = [literal(_dtype_policy(policy))]
    if policy.level != "O0":
        groups = {
            "float32_layers": _float32_layers(policy),
            "following_layers": _following_layers(policy),
            "float32_activations": _float32_activations(policy),
        }
        arguments += [words(name, group) for name, group in groups.items() if group]
        arguments += [named("kept", policy.keep)] if policy.keep else []
    if scales_loss is not None:
        arguments.append(named("scales_loss", scales_loss))
    return laid_out(Group(f"{name} = Precision(", tuple(arguments)))


def _dtype_policy(policy: Policy) -> str:
    """The name of Keras' dtype policy: low precision with float32 variables."""
    return "float32" if policy.level == "O0" else f"mixed_{policy.dtype}"


# -- precision


def _precision_section(recipe: Recipe) -> str:
    if _is_graph_optimizer(recipe):
        return text.GRAPH_OPTIMIZER + "\n\n" + text.CAST
    if recipe.schedule is None and recipe.policy.level == "O0":
        return text.FLOAT32_POLICY + "\n\n" + text.CAST
    precision = fill(
        text.PRECISION,
        dtype=recipe.policy.dtype,
        policy=literal(_dtype_policy(recipe.policy)),
        scaling_field=text.SCALING_FIELD if recipe.schedule else "",
        precisions=_precisions(recipe),
    )
    schedule = _schedule_section(recipe) if recipe.schedule else ""
    return program(precision, schedule, text.SET_PRECISION, text.CAST)


def _precisions(recipe: Recipe) -> str:
    if recipe.schedule is None:
        return _precision("PRECISION", recipe.policy, None)
    names = _precision_names(recipe)
    scales = recipe.scaler is not None
    return "\n".join(
        _precision(name, policy, scales and policy.needs_scaling) for policy, name in names.items()
    )


def _precision_names(recipe: Recipe) -> Mapping[Policy, str]:
    """A constant's name for each policy: ``O1_FLOAT16``."""
    names: dict[Policy, str] = {}
    for policy in recipe.policies:
        short = re.sub(r"\W", "_", f"{policy.level} {policy.dtype}").upper()
        taken = [name for name in names.values() if name.startswith(short)]
        names[policy] = f"{short}_{len(taken) + 1}" if taken else short
    return names


# -- schedule


def _schedule_section(recipe: Recipe) -> str:
    assert recipe.schedule is not None
    data, names = recipe.schedule.to_dict(), _precision_names(recipe)
    if "steps" in data:
        steps = [f"({first}, {names[Policy.from_dict(policy)]})" for first, policy in data["steps"]]
        group = Group("STEPS = (", tuple(steps))
        return fill(text.SCHEDULE_BY_STEPS, steps=laid_out(group, column=4))
    use, otherwise = (names[Policy.from_dict(data[key])] for key in ("use", "otherwise"))
    if "loss_below" in data:
        return fill(
            text.SCHEDULE_BY_LOSS,
            use=use,
            otherwise=otherwise,
            loss_below=number(data["loss_below"]),
            back_above=number(data["back_above"]),
        )
    return fill(
        text.SCHEDULE_BY_SKIPS,
        use=use,
        otherwise=otherwise,
        skips=str(data["skips"]),
        back_after=literal(data["back_after"]),
    )


# -- loss scaling


def _scale_section(recipe: Recipe, comments: Comments) -> str:
    scaling = recipe.scaler
    if scaling is None or _is_keras_scaling(recipe):
        return ""
    if not scaling.dynamic:
        return fill(text.STATIC_LOSS_SCALE, constants=_scale_constants(scaling, comments))
    return fill(
        text.LOSS_SCALE,
        constants=_scale_constants(scaling, comments),
        rule=_rule(scaling),
        counters=_counters(scaling),
        counting=_counting(scaling),
        growing=_growing(scaling),
        falling=_falling(scaling),
        assigning=_assigning(scaling),
    )


def _scale_constants(scaling: Scaling, comments: Comments) -> str:
    """The numbers of the rule, those that it uses."""
    names = ["init_scale"]
    if scaling.dynamic:
        names += ["growth_factor", "backoff_factor", "growth_interval"]
        names += ["backoff_interval"] if scaling.backoff_interval > 1 else []
        names += ["growth_delay"] if scaling.growth_delay else []
        names += ["min_scale", "max_scale"]
    values = {
        name.upper(): (_scaling_literal(scaling, name), comments.get(f"scaler.{name}", ""))
        for name in names
    }
    return constants(values)


def _scaling_literal(scaling: Scaling, name: str) -> str:
    value = getattr(scaling, name)
    return float32_number(value) if isinstance(value, float) else literal(value)


def _rule(scaling: Scaling) -> str:
    overflows = "at each overflow"
    if scaling.backoff_interval > 1:
        overflows = {
            "consecutive": "after BACKOFF_INTERVAL overflows in a row",
            "until_finite": "at each overflow from the BACKOFF_INTERVAL-th in a row on",
            "until_growth": "at each overflow from the BACKOFF_INTERVAL-th since it last grew on",
        }[scaling.backoff_count]
    delay = ", not counting GROWTH_DELAY of them at first" if scaling.growth_delay else ""
    return f"It grows after GROWTH_INTERVAL finite steps in a row{delay},\nand shrinks {overflows}."


def _counters(scaling: Scaling) -> str:
    start = "-GROWTH_DELAY" if scaling.growth_delay else "0"
    lines = f"self.finite_steps = tf.Variable({start}, trainable=False)\n"
    if scaling.backoff_interval > 1:
        lines += "self.overflows = tf.Variable(0, trainable=False)\n"
    return lines


def _counting(scaling: Scaling) -> str:
    start = "-GROWTH_DELAY" if scaling.growth_delay else "0"
    lines = [
        f"finite_steps = tf.where(finite, self.finite_steps + 1, {start})",
        "grows = tf.equal(finite_steps, GROWTH_INTERVAL)",
    ]
    if scaling.backoff_interval == 1:
        return "\n".join([*lines, "shrinks = tf.logical_not(finite)"])
    kept = "tf.where(grows, 0, self.overflows)" if scaling.backoff_count == "until_growth" else "0"
    lines += [
        f"overflows = tf.where(finite, {kept}, self.overflows + 1)",
        "shrinks = tf.logical_and(tf.logical_not(finite), overflows >= BACKOFF_INTERVAL)",
    ]
    return "\n".join(lines)


def _growing(scaling: Scaling) -> str:
    lines = "larger = self.value * GROWTH_FACTOR\n"
    if scaling.at_max_scale == "clamp":
        return lines + "larger = tf.minimum(larger, MAX_SCALE)"
    return lines + "larger = tf.where(larger > MAX_SCALE, self.value, larger)"


def _falling(scaling: Scaling) -> str:
    lines = "smaller = tf.maximum(self.value * BACKOFF_FACTOR, MIN_SCALE)\n"
    if scaling.at_min_scale == "raise":
        lines += (
            "stuck = tf.logical_and(shrinks, tf.equal(self.value, MIN_SCALE))\n"
            'tf.debugging.assert_equal(stuck, False, "overflow at the smallest loss scale")\n'
        )
    return lines


def _assigning(scaling: Scaling) -> str:
    lines = [
        "self.value.assign(tf.where(shrinks, smaller, scale))",
        "self.finite_steps.assign(tf.where(grows, 0, finite_steps))",
    ]
    if scaling.backoff_interval > 1:
        rest = "0" if scaling.backoff_count == "consecutive" else "BACKOFF_INTERVAL - 1"
        lines.append(f"self.overflows.assign(tf.where(shrinks, {rest}, overflows))")
    return "\n".join(lines)


# -- what is trained


def _trained_section(recipe: Recipe) -> str:
    return fill(text.TRAINED, optimizer=_optimizer(recipe), batch_note=_batch_note(recipe))


def _optimizer(recipe: Recipe) -> str:
    """Keras' optimizers are given unscaled gradients; they clip what they have accumulated."""
    arguments = ["learning_rate"]
    if recipe.clip_norm is not None:
        arguments.append(f"global_clipnorm={number(recipe.clip_norm)}")
    if _keras_accumulates(recipe):
        arguments.append(f"gradient_accumulation_steps={recipe.accumulate}")
    return laid_out(Group("return keras.optimizers.SGD(", tuple(arguments)), column=4)


def _batch_note(recipe: Recipe) -> str:
    if recipe.accumulate == 1:
        return "each a batch"
    return f"each one of {recipe.accumulate} micro-batches a step"


def _keras_accumulates(recipe: Recipe) -> bool:
    """Whether Keras' optimizers accumulate as it says: an overflow drops a micro-batch."""
    return recipe.accumulate > 1 and recipe.on_overflow == "drop_microbatch"


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


def _accumulates(recipe: Recipe) -> bool:
    """Whether gradients are added up by the program: an overflow drops the whole step."""
    return recipe.accumulate > 1 and not _keras_accumulates(recipe)


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
    waits = _keras_accumulates(recipe)
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


# -- the loop


def _train_section(recipe: Recipe) -> str:
    scaling = recipe.scaler or Scaling()
    watch = [_watch(recipe)]
    if scaling.warn_after_skips is not None:
        watch.append(fill(text.WARN, steps=str(scaling.warn_after_skips)))
    if scaling.max_consecutive_skips is not None:
        watch.append(fill(text.RAISE, steps=str(scaling.max_consecutive_skips)))
    watched = len(watch) > 1
    whole_step = (
        "result.applied" if _keras_accumulates(recipe) else "result.applied or result.overflowed"
    )
    after = f"if {whole_step}:\n    schedule.after(result)" if recipe.schedule else ""
    before_step = text.CHANGE_PRECISION if recipe.schedule else ""
    return fill(
        text.TRAIN,
        before="\n".join(
            ["schedule = Schedule()"] * bool(recipe.schedule) + ["skipped = 0"] * watched
        ),
        before_step=before_step,
        watch="".join(watch) if watched else "",
        after_step=after,
    )


def _watch(recipe: Recipe) -> str:
    """How skipped steps in a row are counted; micro-batches that wait do not count."""
    rest = "0 if result.applied else skipped" if _accumulates(recipe) else "0"
    return f"skipped = skipped + 1 if result.overflowed else {rest}\n"


def _main_section(recipe: Recipe) -> str:
    precise = "Precision(" in _precision_section(recipe)
    scheduled = recipe.schedule is not None
    return fill(
        text.MAIN,
        set_precision="set_precision(model, PRECISION)" if precise and not scheduled else "",
        more=", Schedule().precision" if scheduled else "",
    )


def _native(recipe: Recipe, comments: Comments) -> str:
    body = [
        _trained_section(recipe),
        _precision_section(recipe),
        _scale_section(recipe, comments),
        _step_section(recipe, comments),
        _train_section(recipe),
        _main_section(recipe),
    ]
    header = fill(
        text.HEADER,
        imports=_imports("".join(body)),
        recipe_comment=recipe_comment(recipe, comments),
    )
    return program(header, *body)


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
        if policy.level != "O0" and not _is_graph_optimizer(recipe):
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
    layers = {op for ops in oplists.native_names("keras_layers").values() for op in ops}
    functions = sorted(set(listed) - layers - ACTIVATIONS.keys())
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
    if recipe.scaler is None or not _keras_accumulates(recipe):
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
            optimizer="return keras.optimizers.SGD(learning_rate)",
            batch_note=_batch_note(recipe),
        ),
    )


def _honoured(recipe: Recipe) -> Recipe:
    """What ampbridge does of it on TensorFlow."""
    if recipe.save_dtype not in (None, "float32"):
        recipe = recipe.replace(save_dtype=None)
    if recipe.schedule is None and recipe.policy.lists == "native":
        recipe = recipe.replace(policy=recipe.policy.replace(lists="tensorflow"))
    return recipe


def _losses_with_ampbridge(recipe: Recipe) -> tuple[Loss, ...]:
    found = _settings_losses(recipe)
    if any(policy.lists == "native" and policy.level != "O0" for policy in recipe.policies):
        msg = "TensorFlow casts nothing by itself; its graph optimizer's lists are taken"
        found.append(Loss("policy.lists", "changes", msg))
    return tuple(found)


TARGET = Target(Form(_native, _native_losses), Form(_with_ampbridge, _losses_with_ampbridge))
