"""Mixed precision of TensorFlow and Keras: dtype policies, loss scale optimizers, the graph rewrite.

Keras has no op lists: under a policy every layer computes in its dtype. ``mixed_float16`` is read as O2,
float32 variables that are used in float16, with the lists of TensorFlow's graph optimizer. These are
nearest to what Keras' layers do inside: normalizations and losses in float32, softmax, activations
and pooling as their inputs, all else low. The graph rewrite is O1 with the same lists, which are its own.

Sources: keras/src/dtype_policies, keras/src/optimizers/loss_scale_optimizer.py and Trainer.compile of
Keras 3.15; tf_keras/src/mixed_precision/loss_scale_optimizer.py, which is Keras 2;
tensorflow/python/training/experimental/{loss_scale,mixed_precision}.py; of TensorFlow 1
tensorflow/contrib/mixed_precision/python/{loss_scale_manager,loss_scale_optimizer}.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ampbridge.policies import op_table
from ampbridge.policies.policy import LOW_DTYPES
from ampbridge_port.reader.dialects import steps
from ampbridge_port.reader.dialects.calls import (
    Call,
    Dialect,
    Draft,
    Handler,
    Name,
    NotKnown,
    Object,
    doubting,
)

LAYERS, POLICY, MADE, KERAS_2, ACCUMULATES, OWN_SCALE = (
    "float32 layers",
    "policy",
    "policies",
    "is Keras 2",
    "accumulates",
    "loss_scale_factor",
)
OF_LAYERS = "policy of layers alone"
"""What is kept in mind until the whole program has been seen, in ``Draft.seen``."""


# -- policies


def make_policy(call: Call, draft: Draft) -> None:
    """``Policy(name)`` and ``DTypePolicy(name)``: of use where something takes it."""
    draft.seen[MADE] = call.place
    if "loss_scale" in call.arguments:
        _take_loss_scale(call, draft)


def set_policy(call: Call, draft: Draft) -> None:
    """``set_dtype_policy``, ``set_global_policy``: of every layer made from then on."""
    try:
        name = _policy_name(call, "policy")
    except NotKnown as error:
        draft.set("policy.lists", "tensorflow")
        draft.doubt(error.place, "policy.level", "policy.dtype")
        return
    take_policy(name, call, draft)


@doubting("policy.level")
def set_floatx(call: Call, draft: Draft) -> None:
    """``keras.config.set_floatx``: the dtype of variables, and of all that is made of them."""
    name = call.value("floatx", "float32")
    if name in LOW_DTYPES:
        take_policy(name, call, draft)


def _policy_name(call: Call, argument: str) -> Any:
    """The name of the policy that is passed, as text or as an object.

    Raises:
        NotKnown: if it cannot be known.
    """
    value = call.value(argument, None)
    if isinstance(value, Object) and value.qualified in _POLICY_OBJECTS:
        return value.call.value("name", None)
    if isinstance(value, Name) and value.last in (*LOW_DTYPES, "float32"):
        return value.last
    if isinstance(value, Name):
        raise NotKnown(call.place_of(argument))
    return value


def take_policy(name: Any, call: Call, draft: Draft) -> None:
    """The policy of a whole program, by Keras' name of it."""
    text = str(name)
    dtype = text.removeprefix("mixed_")
    if dtype in LOW_DTYPES:
        earlier = draft.settings.get("policy.dtype", dtype)
        if earlier != dtype:
            made = f"Layers made before compute in {earlier}"
            message = f"{made}; the recipe has this policy's {dtype}."
            draft.lost(call.place, message, "give each training a recipe of its own.")
        draft.set_policy("O2", dtype, "tensorflow")
        draft.set("policy.masters", None if text.startswith("mixed_") else "none")
        draft.comments["policy.level"] = call.place.text
        draft.seen[POLICY] = call.place
        _tell_of_layers(text, call, draft)
    elif text not in ("float32", "None"):
        message = f"A recipe has float16, bfloat16 and float32; {text} is none of them."
        draft.lost(call.place, message)
    elif draft.settings.get("policy.level", "O0") == "O0":
        draft.set("policy.level", "O0")
    else:
        message = "Layers made from here on are float32; the recipe has the policy of those before."
        draft.note(call.place, message, "name those that are trained with them under keep.")


def _tell_of_layers(text: str, call: Call, draft: Draft) -> None:
    if text.startswith("mixed_"):
        message = (
            f"Keras casts layer by layer and has no op lists. {text} is read as O2 with the lists "
            "of TensorFlow's graph optimizer, which are nearest: normalizations and losses in "
            "float32, softmax and activations in the dtype that arrives."
        )
        draft.note(call.place, message, "policy.level = 'O1' casts op by op instead.")
        return
    message = (
        f"Variables and all ops are {text} there, normalizations and losses too, and so are the "
        "optimizer's slots; O2 runs those in float32."
    )
    draft.lost(call.place, message, f"mixed_{text} keeps float32 variables.")


# -- the graph rewrite


@doubting("policy.level")
def set_options(call: Call, draft: Draft) -> None:
    """``tf.config.optimizer.set_experimental_options(options)``."""
    options = call.parts("options")
    if options is None:
        draft.doubt(call.place_of("options"), "policy.level")
        return
    for option, dtype in _OPTIONS.items():
        if option in options.arguments and options.flag(option, False):
            take_graph_rewrite(call, draft, dtype)


_OPTIONS: Mapping[str, str] = {
    "auto_mixed_precision": "float16",
    "auto_mixed_precision_mkl": "bfloat16",
    "auto_mixed_precision_onednn_bfloat16": "bfloat16",
}


def take_graph_rewrite(call: Call, draft: Draft, dtype: str) -> None:
    """TensorFlow's graph optimizer casts op by op, by its own lists."""
    draft.set_policy("O1", dtype, "tensorflow")
    draft.comments["policy.level"] = call.place.text
    message = (
        "TensorFlow rewrites graphs alone: what runs eagerly, or is compiled by XLA (jit_compile), "
        "stays float32 there; the recipe holds everywhere."
    )
    draft.note(call.place, message)


def enable_graph_rewrite(call: Call, draft: Draft) -> None:
    """``enable_mixed_precision_graph_rewrite(opt, loss_scale="dynamic")``."""
    take_graph_rewrite(call, draft, "float16")
    _take_loss_scale(call, draft)


def set_environment(call: Call, draft: Draft) -> None:
    """``os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"``."""
    try:
        key, names = call.value("key", ""), (_REWRITE, f"{_REWRITE}_GRAPH_REWRITE")
        on = key in names and str(call.value("value", "")).lower() in ("1", "true")
    except NotKnown as error:
        if _REWRITE in call.place.text:
            draft.doubt(error.place, "policy.level")
        return
    if on:
        take_graph_rewrite(call, draft, "float16")
        draft.note(call.place, "Only NVIDIA's builds of TensorFlow look at this variable.")
    if on and key == _REWRITE:
        if not draft.says("scaler."):
            steps.like(draft, "keras")
        draft.set("scaler.min_scale", 1.0)


_REWRITE = "TF_ENABLE_AUTO_MIXED_PRECISION"


# -- loss scaling


def _take_away_factor(draft: Draft, hint: str = "") -> None:
    """``Adam(loss_scale_factor=1024.0)`` in a LossScaleOptimizer, which sets the factor to None."""
    call = draft.seen.pop(OWN_SCALE, None)
    if call is not None:
        draft.forget("scaler.")
        del draft.seen["scaler"]
        message = "LossScaleOptimizer sets loss_scale_factor to None: this has no effect."
        draft.ignored(call.place_of("loss_scale_factor"), message, hint)


def loss_scale_optimizer(call: Call, draft: Draft) -> None:
    """``LossScaleOptimizer``: of Keras 3 ``(inner, initial_scale, dynamic_growth_steps, name)``,
    of Keras 2 ``(inner, dynamic, initial_scale, dynamic_growth_steps)``.
    """
    _take_away_factor(draft)
    draft.seen["scaler"] = call.place
    steps.like(draft, "keras")
    if steps.tell_of_own_rule(call, draft):
        draft.doubt(call.place, "scaler.init_scale", "scaler.growth_interval")
        return
    keys = {"initial_scale": "init_scale", "dynamic_growth_steps": "growth_interval"}
    if isinstance(call.known("initial_scale", None), bool):  # Keras 2's first argument is a flag
        keys = {
            "initial_scale": "dynamic", "dynamic_growth_steps": "init_scale",
            "name": "growth_interval",
        }  # fmt: skip
    elif "dynamic" in call.arguments:
        keys = {"dynamic": "dynamic", **keys}
    if "dynamic" in keys.values():
        draft.seen[KERAS_2] = call.place
    steps.take_numbers(call, draft, keys)


def experimental_optimizer(call: Call, draft: Draft) -> None:
    """``experimental.LossScaleOptimizer(optimizer, loss_scale)`` of TensorFlow 2.0 to 2.4."""
    draft.seen["scaler"] = call.place
    _take_loss_scale(call, draft)


def _take_loss_scale(call: Call, draft: Draft) -> None:
    """``loss_scale="dynamic"``, a number, or an object, which has spoken for itself."""
    try:
        value = call.value("loss_scale", "dynamic")
    except NotKnown as error:
        steps.like(draft, "keras")
        draft.doubt(error.place, "scaler.init_scale")
        return
    if isinstance(value, Name):
        return
    if value is None:
        steps.never(draft)
    elif isinstance(value, str):
        steps.like(draft, "keras")
        draft.seen[KERAS_2] = call.place
    else:
        _take_fixed(call, draft, "loss_scale")


def dynamic_loss_scale(call: Call, draft: Draft) -> None:
    """``DynamicLossScale(initial_loss_scale=2**15, increment_period=2000, multiplier=2.0)``."""
    keys = {
        "initial_loss_scale": "init_scale",
        "increment_period": "growth_interval",
        "multiplier": "growth_factor",
    }
    steps.scaler(call, draft, "keras", keys)
    draft.seen[KERAS_2] = call.place
    if "multiplier" in call.arguments:
        draft.take("scaler.backoff_factor", call, "multiplier", 2.0, lambda by: 1.0 / float(by))


@doubting("scaler.init_scale")
def _take_fixed(call: Call, draft: Draft, argument: str) -> None:
    steps.like(draft, "keras")
    draft.set("scaler.dynamic", False)
    steps.fixed(draft, "keras", steps.number(call.value(argument, None)))
    draft.comments["scaler.init_scale"] = f"{argument}={call.place_of(argument).text}"


def fixed_scale(argument: str) -> Handler:
    """``FixedLossScale(loss_scale_value)`` and its like."""

    def handle(call: Call, draft: Draft) -> None:
        draft.seen["scaler"] = call.place
        _take_fixed(call, draft, argument)

    return handle


def contrib_optimizer(call: Call, draft: Draft) -> None:
    """``LossScaleOptimizer(opt, loss_scale_manager)``; the manager has spoken for itself, if it is here."""
    draft.seen["scaler"] = call.place
    if not draft.says("scaler."):
        draft.doubt(call.place_of("loss_scale_manager"), "scaler.init_scale")


def exponential_manager(call: Call, draft: Draft) -> None:
    """``ExponentialUpdateLossScaleManager(init_loss_scale, incr_every_n_steps, ...)``."""
    keys = {
        "init_loss_scale": "init_scale",
        "incr_every_n_steps": "growth_interval",
        "decr_every_n_nan_or_inf": "backoff_interval",
        "incr_ratio": "growth_factor",
        "decr_ratio": "backoff_factor",
    }
    call = call.passing(decr_every_n_nan_or_inf=2, incr_ratio=2.0, decr_ratio=0.8)
    steps.scaler(call, draft, "keras", keys)
    draft.set("scaler.min_scale", 1.0)
    if draft.settings.get("scaler.backoff_interval", 1) != 1:
        message = (
            "Finite steps between overflows do not reset the manager's count of them; a recipe's "
            "backoff_interval counts overflows in a row."
        )
        draft.lost(call.place, message, "decr_every_n_nan_or_inf=1, if the script may change")


def keras_2_method(call: Call, draft: Draft) -> None:
    """``get_scaled_loss`` and ``get_unscaled_gradients``: Keras 3 has them no more."""
    if call.name.endswith("get_unscaled_gradients"):
        draft.seen[steps.UNSCALED] = call.place
    draft.seen[KERAS_2] = call.place


# -- optimizers, models, layers

_CLIPPINGS = {
    "global_clipnorm": "clip_norm",
    "clipnorm": "clip_each_norm",
    "clipvalue": "clip_value",
}


def optimizer(call: Call, draft: Draft) -> None:
    """An optimizer of Keras: what it takes of clipping, accumulation and a fixed scale."""
    call = Call(call.name, call.place, {**call.arguments, **call.extra})
    for argument, name in _CLIPPINGS.items():
        if argument in call.arguments:
            steps.clip(draft, name, call, argument, steps.limit)
    count = "gradient_accumulation_steps"
    if count in call.arguments:
        draft.take("step.accumulate", call, count, None, steps.micro_batches)
        draft.seen[ACCUMULATES] = call.place
    if call.given("loss_scale_factor"):
        fixed_scale("loss_scale_factor")(call, draft)
        draft.seen[OWN_SCALE] = call


def optimizer_attribute(call: Call, draft: Draft) -> None:
    """``optimizer.global_clipnorm = 1.0``, and what else Keras' optimizers take."""
    passed = {call.name.rpartition(".")[2]: call.arguments["value"]}
    optimizer(Call(call.name, call.place, passed), draft)


def clip_by_global_norm(call: Call, draft: Draft) -> None:
    """``tf.clip_by_global_norm(t_list, clip_norm)``."""
    steps.clip(draft, "clip_norm", call, "clip_norm")
    steps.note_order(draft, call)


def clip_by_norm(call: Call, draft: Draft) -> None:
    """``tf.clip_by_norm(t, clip_norm, axes=None)``."""
    if "axes" in call.arguments:
        message = "It clips the norms of a part of each gradient; a recipe clips that of all of it."
        draft.lost(call.place, message, "keep this call, between unscaling and the update.")
    elif _is_of_gradients(call):
        steps.clip(draft, "clip_each_norm", call, "clip_norm")
        steps.note_order(draft, call)
    else:
        message = f"It clips {call.place_of('t').text}; whether that is a gradient is not known."
        hint = "step.clip_each_norm in the recipe, if it is one."
        draft.find("unknown", call.place, message, hint)


def clip_by_value(call: Call, draft: Draft) -> None:
    """``tf.clip_by_value(t, clip_value_min, clip_value_max)``, where ``t`` is a gradient."""
    if _is_of_gradients(call):
        steps.clip_within(call, draft, "clip_value_min", "clip_value_max")
        steps.note_order(draft, call)


def _is_of_gradients(call: Call) -> bool:
    """By its name, or by that of what a loop around it goes over."""
    written = call.place_of("t").text
    loops = (over for name, over in call.loops.items() if name in re.findall(r"\w+", written))
    return any(re.search(r"grad|gvs?\b|^g\b", text, re.I) for text in (written, *loops))


def compile_model(call: Call, draft: Draft) -> None:
    """``model.compile(...)``: Keras scales the loss of float16 models by itself."""
    if call.known("auto_scale_loss", True, True):
        draft.seen[steps.COMPILED] = call.place


def layer(call: Call, draft: Draft) -> None:
    """A layer of Keras with a dtype of its own: kept in float32, or the first that is low."""
    call = Call(call.name, call.place, {**call.arguments, **call.extra})
    if "dtype" not in call.arguments:
        return
    try:
        name = str(_policy_name(call, "dtype"))
    except NotKnown as error:
        # tensors have dtypes as well, and a layer may be of any: unless a policy is made for some
        if MADE in draft.seen and "policy.level" not in draft.settings:
            draft.set("policy.lists", "tensorflow")
            draft.doubt(error.place, "policy.level")
        return
    dtype = name.removeprefix("mixed_")
    if name == "float32":
        draft.seen.setdefault(LAYERS, []).append(call)
    elif dtype in LOW_DTYPES and not _is_low(draft):
        take_policy(name, call, draft)
        draft.seen[OF_LAYERS] = draft.seen.pop(POLICY)
        message = f"Layers without a dtype are float32 there; the recipe runs all in {dtype} but for keep."
        draft.lost(call.place, message, "name the others under keep.")


def _is_low(draft: Draft) -> bool:
    return "policy.level" in draft.unknown or draft.settings.get("policy.level", "O0") != "O0"


# -- when all has been seen


def finish(draft: Draft) -> None:
    """What layers and ``compile`` mean under the policy of the program."""
    seen, settings = draft.seen, draft.settings
    is_float16 = settings.get("policy.dtype") == "float16"
    if is_float16 and POLICY in seen and steps.COMPILED in seen:
        _take_away_factor(draft, "compile(auto_scale_loss=False) keeps the factor.")
    if "scaler" in seen and not draft.says("policy.level"):
        draft.unknown["policy.level"] = seen["scaler"]  # another file says it
    if _is_low(draft):
        for each in seen.get(LAYERS, ()):
            _keep(each, draft)
    if is_float16 and not draft.says("scaler."):
        _take_keras_own_scaling(draft)
    if KERAS_2 in seen and "scaler.like" in settings and settings.get("scaler.dynamic", True):
        draft.set("scaler.min_scale", 1.0)
        draft.comments["scaler.min_scale"] = "the floor of Keras 2"
    if POLICY in seen or "scaler" in seen:
        hint = "global_clipnorm, clipnorm or clipvalue of the inner optimizer, which get unscaled gradients."
        steps.tell_of_order(draft, hint)
    if ACCUMULATES in seen and settings.get("step.accumulate", 1) != 1:
        draft.set("step.on_overflow", "drop_microbatch")
        draft.comments["step.on_overflow"] = "as Keras accumulates"


def _take_keras_own_scaling(draft: Draft) -> None:
    compiled = draft.seen.get(steps.COMPILED)
    if OF_LAYERS in draft.seen and POLICY not in draft.seen and compiled is not None:
        steps.never(draft)
        message = (
            "Layers are of a low policy, the model is not: compile() adds a LossScaleOptimizer by "
            "the policy of the model alone, and scales no loss here."
        )
        hint = "keras.optimizers.LossScaleOptimizer(...), if it was meant to scale"
        draft.note(compiled, message, hint)
        return
    if compiled is None or draft.settings.get("policy.level") == "O1":
        steps.never(draft)
        if POLICY in draft.seen:
            message = (
                "No LossScaleOptimizer, and no compile() that would add one: Keras scales no loss "
                "then. A scale of the file's own making cannot be read."
            )
            hint = "say it: scaler.init_scale, scaler.growth_interval, ..."
            draft.note(draft.seen[POLICY], message, hint)
        return
    steps.like(draft, "keras")
    draft.comments["scaler.like"] = "compile() scales the loss by itself"
    message = (
        "compile() wraps the optimizer in Keras' LossScaleOptimizer where the model's policy is "
        "mixed_float16: 2**15 at first, doubled after 2000 finite steps."
    )
    draft.note(compiled, message, "compile(auto_scale_loss=False) does not.")


def _keep(call: Call, draft: Draft) -> None:
    name = call.known("name", None)
    if isinstance(name, str):
        kept = draft.settings.get("policy.keep", [])
        draft.set("policy.keep", [*kept, *([] if name in kept else [name])])
        draft.comments["policy.keep"] = 'dtype="float32"'
        return
    layer = call.name.rpartition(".")[2]
    message = (
        f"This {layer} computes in float32 there. It has no name by which a recipe could keep it "
        "so; of the last layer, what the model returns is float32 anyway (policy.output_dtype)."
    )
    given = f"{layer.lower()}_in_float32"
    hint = f'pass it name="{given}", and keep = ["{given}"].'
    draft.lost(call.place_of("dtype"), message, hint)


# -- names

_OPTIMIZERS = tuple(
    f"keras.optimizers.{name}"
    for name in [
        "SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Adafactor",
        "Nadam", "Ftrl", "Lion", "Lamb", "Muon",
    ]
)  # fmt: skip
_SCALER, _OLD, _CONTRIB = (
    "keras.optimizers.LossScaleOptimizer",
    "keras.mixed_precision.experimental",
    "tensorflow.contrib.mixed_precision",
)
_OLD_SCALER, _OLD_SCALES = f"{_OLD}.LossScaleOptimizer", "tensorflow.mixed_precision.experimental"
_REWRITER = "tensorflow.train.experimental.enable_mixed_precision_graph_rewrite"
_POLICY_OBJECTS = ("keras.DTypePolicy", f"{_OLD}.Policy")
_SET_OPTIONS = "tensorflow.config.optimizer.set_experimental_options"
_LAYERS = tuple(
    f"keras.layers.{name}" for name in sorted({*op_table.native_names("keras_layers"), "Lambda"})
)
_MODELS = ("keras.Model", "keras.Sequential")
_ATTRIBUTES = (*_CLIPPINGS, "gradient_accumulation_steps", "loss_scale_factor")
_COMPILE = (
    "optimizer loss loss_weights metrics weighted_metrics run_eagerly steps_per_execution "
    "jit_compile auto_scale_loss"
)


# fmt: off
CALLS: Mapping[str, tuple[str, Handler | None]] = {
    **dict.fromkeys(("keras.config.set_dtype_policy", f"{_OLD}.set_policy"), ("policy", set_policy)),
    "keras.DTypePolicy": ("name", make_policy),
    f"{_OLD}.Policy": ("name loss_scale", make_policy),
    "keras.config.set_floatx": ("floatx", set_floatx),
    _SET_OPTIONS: ("options", set_options),
    _REWRITER: ("opt loss_scale", enable_graph_rewrite),
    **dict.fromkeys(
        ("os.environ.__setitem__", "os.environ.setdefault", "os.putenv"), ("key value", set_environment)
    ),
    _SCALER: ("inner_optimizer initial_scale dynamic_growth_steps name dynamic", loss_scale_optimizer),
    _OLD_SCALER: ("optimizer loss_scale", experimental_optimizer),
    f"{_OLD_SCALES}.DynamicLossScale": (
        "initial_loss_scale increment_period multiplier", dynamic_loss_scale,
    ),
    f"{_OLD_SCALES}.FixedLossScale": ("loss_scale_value", fixed_scale("loss_scale_value")),
    f"{_CONTRIB}.LossScaleOptimizer": ("opt loss_scale_manager", contrib_optimizer),
    f"{_CONTRIB}.FixedLossScaleManager": ("loss_scale enable_loss_scale", fixed_scale("loss_scale")),
    f"{_CONTRIB}.ExponentialUpdateLossScaleManager": (
        "init_loss_scale incr_every_n_steps decr_every_n_nan_or_inf incr_ratio decr_ratio",
        exponential_manager,
    ),
    **{
        f"{scaler}.{method}": ("value", keras_2_method)
        for scaler in (_SCALER, _OLD_SCALER) for method in ("get_scaled_loss", "get_unscaled_gradients")
    },
    **dict.fromkeys(_OPTIMIZERS, ("learning_rate", optimizer)),
    **{
        f"{each}.{name}": ("value", optimizer_attribute)
        for each in ("keras.optimizers.Optimizer", *_OPTIMIZERS) for name in _ATTRIBUTES
    },
    "tensorflow.clip_by_global_norm": ("t_list clip_norm use_norm", clip_by_global_norm),
    "tensorflow.clip_by_norm": ("t clip_norm axes", clip_by_norm),
    "tensorflow.clip_by_value": ("t clip_value_min clip_value_max", clip_by_value),
    **dict.fromkeys(_MODELS, ("", None)),
    **{f"{model}.compile": (_COMPILE, compile_model) for model in _MODELS},
    **dict.fromkeys(_LAYERS, ("", layer)),
}
# fmt: on

_RENAMED = {
    "keras.config.set_dtype_policy": (
        "keras.mixed_precision.set_dtype_policy",
        "keras.mixed_precision.set_global_policy",
        "keras.dtype_policies.set_dtype_policy",
    ),
    "keras.DTypePolicy": ("keras.mixed_precision.Policy", "keras.FloatDTypePolicy"),
    "keras.config.set_floatx": ("keras.backend.set_floatx",),
    _SCALER: ("keras.mixed_precision.LossScaleOptimizer",),
    **{
        f"{_OLD_SCALES}.{name}": (
            f"tensorflow.train.experimental.{name}",
            f"tensorflow.mixed_precision.{name}",
            f"{_OLD}.{name}",
        )
        for name in ("DynamicLossScale", "FixedLossScale")
    },
    _OLD_SCALER: tuple(
        f"tensorflow.{module}.MixedPrecisionLossScaleOptimizer"
        for module in ("train.experimental", "mixed_precision")
    ),
    _REWRITER: ("tensorflow.mixed_precision.enable_mixed_precision_graph_rewrite",),
}

DIALECT = Dialect(
    "tensorflow",
    CALLS,
    {other: name for name, others in _RENAMED.items() for other in others},
    finish,
    frozenset(
        {*_OPTIMIZERS, *_LAYERS, *_MODELS, *(f"{model}.compile" for model in _MODELS), _SCALER}
    ),
    {
        "tensorflow.compat.v1": "tensorflow",
        "tensorflow.compat.v2": "tensorflow",
        "tensorflow.python.keras": "keras",
        "tensorflow.keras": "keras",
        "tf_keras": "keras",
    },
)
