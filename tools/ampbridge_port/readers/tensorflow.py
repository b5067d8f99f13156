"""Mixed precision of TensorFlow and Keras: dtype policies, loss scale optimizers, the graph rewrite.

Keras has no op lists: under a policy every layer computes in its dtype. ``mixed_float16`` is read as O2,
float32 variables that are used in float16, with the lists of TensorFlow's graph optimizer. These are
nearest to what Keras' layers do inside: normalizations and losses in float32, softmax, activations
and pooling as their inputs, all else low. The graph rewrite is O1 with the same lists, which are its own.

Sources: keras/src/dtype_policies, keras/src/optimizers/loss_scale_optimizer.py and Trainer.compile of
Keras 3.15; tf_keras/src/mixed_precision/loss_scale_optimizer.py, which is Keras 2;
tensorflow/python/training/experimental/{loss_scale,mixed_precision}.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from ampbridge.policies import op_table
from ampbridge.policies.policy import LOW_DTYPES
from ampbridge_port.dialect import Call, Dialect, Draft, Handler, Name, NotKnown, Object
from ampbridge_port.readers import clipping, scaling
from ampbridge_port.reading import Place


@dataclass
class _Seen:
    """What is understood only when the whole file has been seen."""

    policies: dict[str, Any] = field(default_factory=dict)
    """Policy objects by what they are bound to; the last under "" too."""
    float32_layers: list[Call] = field(default_factory=list)
    policy: Place | None = None
    """Where the policy of the program is set."""
    scaler: Place | None = None
    compiled: Place | None = None
    accumulates: bool = False
    is_keras_2: bool = False


_SEEN: WeakKeyDictionary[Draft, _Seen] = WeakKeyDictionary()


def _seen(draft: Draft) -> _Seen:
    return _SEEN.setdefault(draft, _Seen())


# -- policies


def make_policy(call: Call, draft: Draft) -> None:
    """``Policy(name)`` and ``DTypePolicy(name)``: of use where something takes it."""
    try:
        name = call.value("name", None)
    except NotKnown as error:
        name = error
    _seen(draft).policies.update({call.target: name, "": name})
    if "loss_scale" in call.arguments:
        _take_loss_scale(call, draft)


def set_policy(call: Call, draft: Draft) -> None:
    """``set_dtype_policy``, ``set_global_policy``: of every layer made from then on."""
    try:
        name = _policy_name(call, "policy", draft)
    except NotKnown as error:
        draft.set("policy.lists", "tensorflow")
        for key in ("policy.level", "policy.dtype"):
            draft.settings.pop(key, None)
            draft.unknown[key] = error.place
        return
    take_policy(name, call, draft)


def set_floatx(call: Call, draft: Draft) -> None:
    """``keras.config.set_floatx``: the dtype of variables, and of all that is made of them."""
    try:
        name = call.value("floatx", "float32")
    except NotKnown as error:
        draft.unknown["policy.level"] = error.place
        return
    if name in LOW_DTYPES:
        take_policy(name, call, draft)


def _policy_name(call: Call, argument: str, draft: Draft) -> Any:
    """The name of the policy that is passed, as text or as an object.

    Raises:
        NotKnown: if it cannot be known.
    """
    value = call.value(argument, None)
    if isinstance(value, Object) and value.qualified in _POLICY_OBJECTS:
        return value.call.value("name", None)
    if not isinstance(value, Name):
        return value
    policies = _seen(draft).policies
    name = policies.get(call.place_of(argument).text, policies.get(""))
    if name is None or isinstance(name, NotKnown):
        raise name or NotKnown(call.place_of(argument))
    return name


def take_policy(name: Any, call: Call, draft: Draft) -> None:
    """The policy of a whole program, by Keras' name of it."""
    text = str(name)
    dtype = text.removeprefix("mixed_")
    if dtype in LOW_DTYPES:
        _tell_of_earlier_policy(dtype, call, draft)
        draft.set("policy.level", "O2")
        draft.set("policy.dtype", dtype)
        draft.set("policy.lists", "tensorflow")
        draft.set("policy.master_weights", None if text.startswith("mixed_") else False)
        draft.comments["policy.level"] = call.place.text
        _seen(draft).policy = call.place
        _tell_of_layers(text, call, draft)
    elif text in ("float32", "None"):
        _take_float32(call, draft)
    else:
        msg = f"A recipe has float16, bfloat16 and float32; {text} is none of them."
        draft.find("lost", call.place, msg)


def _take_float32(call: Call, draft: Draft) -> None:
    if draft.settings.get("policy.level", "O0") == "O0":
        draft.set("policy.level", "O0")
        return
    draft.find(
        "note",
        call.place,
        "Layers made from here on are float32; the recipe has the policy of those before.",
        "name those that are trained with them under keep.",
    )


def _tell_of_earlier_policy(dtype: str, call: Call, draft: Draft) -> None:
    earlier = draft.settings.get("policy.dtype", dtype)
    if earlier != dtype:
        msg = f"Layers made before compute in {earlier}; the recipe has this policy's {dtype}."
        draft.find("lost", call.place, msg, "give each training a recipe of its own.")


def _tell_of_layers(text: str, call: Call, draft: Draft) -> None:
    if text.startswith("mixed_"):
        draft.find(
            "note",
            call.place,
            f"Keras casts layer by layer and has no op lists. {text} is read as O2 with the lists of "
            "TensorFlow's graph optimizer, which are nearest: normalizations and losses in float32, "
            "softmax and activations in the dtype that arrives.",
            "policy.level = 'O1' casts op by op instead.",
        )
        return
    draft.find(
        "lost",
        call.place,
        f"Variables and all ops are {text} there, normalizations and losses too, and so are the "
        "optimizer's slots; O2 runs those in float32.",
        f"mixed_{text} keeps float32 variables.",
    )


# -- the graph rewrite


def set_options(call: Call, draft: Draft) -> None:
    """``tf.config.optimizer.set_experimental_options(options)``."""
    try:
        options = call.value("options", {})
    except NotKnown as error:
        draft.unknown["policy.level"] = error.place
        return
    for option, dtype in _OPTIONS.items():
        if isinstance(options, Mapping) and options.get(option):
            take_graph_rewrite(call, draft, dtype)


_OPTIONS: Mapping[str, str] = {
    "auto_mixed_precision": "float16",
    "auto_mixed_precision_mkl": "bfloat16",
    "auto_mixed_precision_onednn_bfloat16": "bfloat16",
}


def take_graph_rewrite(call: Call, draft: Draft, dtype: str) -> None:
    """TensorFlow's graph optimizer casts op by op, by its own lists."""
    draft.set("policy.level", "O1")
    draft.set("policy.dtype", dtype)
    draft.set("policy.lists", "tensorflow")
    draft.comments["policy.level"] = call.place.text
    draft.find(
        "note",
        call.place,
        "TensorFlow rewrites graphs alone: what runs eagerly, or is compiled by XLA (jit_compile), "
        "stays float32 there; the recipe holds everywhere.",
    )


def enable_graph_rewrite(call: Call, draft: Draft) -> None:
    """``enable_mixed_precision_graph_rewrite(opt, loss_scale="dynamic")``."""
    take_graph_rewrite(call, draft, "float16")
    _take_loss_scale(call, draft)


def set_environment(call: Call, draft: Draft) -> None:
    """``os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"``."""
    try:
        key = call.value("key", "")
    except NotKnown:
        return
    if key not in (_REWRITE, f"{_REWRITE}_GRAPH_REWRITE"):
        return
    try:
        on = str(call.value("value", "")).lower() in ("1", "true")
    except NotKnown as error:
        draft.unknown["policy.level"] = error.place
        return
    if on:
        take_graph_rewrite(call, draft, "float16")
        draft.find("note", call.place, "Only NVIDIA's builds of TensorFlow look at this variable.")
    if on and key == _REWRITE:
        scaling.unless_known(draft, "keras")
        draft.set("scaler.min_scale", 1.0)


_REWRITE = "TF_ENABLE_AUTO_MIXED_PRECISION"


# -- loss scaling


def loss_scale_optimizer(call: Call, draft: Draft) -> None:
    """``LossScaleOptimizer``: of Keras 3 ``(inner, initial_scale, dynamic_growth_steps, name)``,
    of Keras 2 ``(inner, dynamic, initial_scale, dynamic_growth_steps)``.
    """
    _seen(draft).scaler = call.place
    scaling.like(draft, "keras")
    if call.overridden - _HARMLESS:
        for key in ("scaler.init_scale", "scaler.growth_interval"):
            draft.unknown[key] = call.place
        draft.find(
            "unknown",
            call.place,
            "A subclass of LossScaleOptimizer: a scale of the file's own making cannot be read.",
            "say it: scaler.init_scale, scaler.growth_interval, ...",
        )
        return
    names = _keras_2_names(call, draft)
    if "dynamic" in (*names.values(), *call.arguments):
        _seen(draft).is_keras_2 = True
    for argument, key in names.items():
        if key == "dynamic":
            draft.take("scaler.dynamic", call, argument, True, lambda on: None if on else False)
        elif argument in call.arguments or call.unpacked is not None:
            convert = scaling.whole if key == "growth_interval" else scaling.number
            draft.take(f"scaler.{key}", call, argument, None, _unless_none(convert))


_HARMLESS = {"__init__", "get_config", "from_config"}
"""Methods that a subclass may have without scaling otherwise."""


def _keras_2_names(call: Call, draft: Draft) -> Mapping[str, str]:
    """What each argument says: a flag in Keras 3's place of the scale is Keras 2's first one."""
    keras_3 = {"initial_scale": "init_scale", "dynamic_growth_steps": "growth_interval"}
    try:
        positional = isinstance(call.value("initial_scale", None), bool)
    except NotKnown:
        positional = False
    if positional:
        names = ("initial_scale", "dynamic_growth_steps", "name")
        return dict(zip(names, ("dynamic", "init_scale", "growth_interval"), strict=True))
    return {"dynamic": "dynamic", **keras_3} if "dynamic" in call.arguments else keras_3


def _unless_none(convert: Any) -> Any:
    return lambda value: None if value is None else convert(value)


def experimental_optimizer(call: Call, draft: Draft) -> None:
    """``experimental.LossScaleOptimizer(optimizer, loss_scale)`` of TensorFlow 2.0 to 2.4."""
    _seen(draft).scaler = call.place
    _take_loss_scale(call, draft)


def _take_loss_scale(call: Call, draft: Draft) -> None:
    """``loss_scale="dynamic"``, a number, or an object, which has spoken for itself."""
    try:
        value = call.value("loss_scale", "dynamic")
    except NotKnown as error:
        scaling.like(draft, "keras")
        draft.unknown["scaler.init_scale"] = error.place
        return
    if isinstance(value, Name):
        return
    if value is None:
        scaling.never(draft)
    elif isinstance(value, str):
        scaling.like(draft, "keras")
        _seen(draft).is_keras_2 = True
    else:
        scaling.fixed(draft, "keras", scaling.number(value))
        draft.comments["scaler.init_scale"] = f"loss_scale={call.place_of('loss_scale').text}"


def dynamic_loss_scale(call: Call, draft: Draft) -> None:
    """``DynamicLossScale(initial_loss_scale=2**15, increment_period=2000, multiplier=2.0)``."""
    _seen(draft).scaler = call.place
    scaling.like(draft, "keras")
    _seen(draft).is_keras_2 = True
    draft.take("scaler.init_scale", call, "initial_loss_scale", None, _unless_none(scaling.number))
    draft.take(
        "scaler.growth_interval", call, "increment_period", None, _unless_none(scaling.whole)
    )
    if "multiplier" in call.arguments or call.unpacked is not None:
        draft.take("scaler.growth_factor", call, "multiplier", 2.0, scaling.number)
        draft.take("scaler.backoff_factor", call, "multiplier", 2.0, lambda by: 1.0 / float(by))


def fixed_loss_scale(call: Call, draft: Draft) -> None:
    """``FixedLossScale(loss_scale_value)``."""
    _seen(draft).scaler = call.place
    _take_fixed(call, draft, "loss_scale_value")


def _take_fixed(call: Call, draft: Draft, argument: str) -> None:
    try:
        scaling.fixed(draft, "keras", scaling.number(call.value(argument, None)))
    except NotKnown as error:
        scaling.like(draft, "keras")
        draft.set("scaler.dynamic", False)
        draft.unknown["scaler.init_scale"] = error.place
        return
    draft.comments["scaler.init_scale"] = f"{argument}={call.place_of(argument).text}"


# -- TensorFlow 1: tensorflow/contrib/mixed_precision/python/{loss_scale_manager,loss_scale_optimizer}.py


def contrib_optimizer(call: Call, draft: Draft) -> None:
    """``LossScaleOptimizer(opt, loss_scale_manager)``; the manager has spoken for itself, if it is here."""
    _seen(draft).scaler = call.place
    if not scaling.known(draft):
        draft.unknown["scaler.init_scale"] = call.place_of("loss_scale_manager")


def fixed_manager(call: Call, draft: Draft) -> None:
    """``FixedLossScaleManager(loss_scale, enable_loss_scale=True)``."""
    _seen(draft).scaler = call.place
    _take_fixed(call, draft, "loss_scale")


def exponential_manager(call: Call, draft: Draft) -> None:
    """``ExponentialUpdateLossScaleManager(init_loss_scale, incr_every_n_steps, ...)``."""
    _seen(draft).scaler = call.place
    scaling.like(draft, "keras")
    draft.set("scaler.min_scale", 1.0)
    draft.take("scaler.init_scale", call, "init_loss_scale", None, scaling.number)
    draft.take("scaler.growth_interval", call, "incr_every_n_steps", None, scaling.whole)
    draft.take("scaler.backoff_interval", call, "decr_every_n_nan_or_inf", 2, scaling.whole)
    draft.take("scaler.growth_factor", call, "incr_ratio", 2, scaling.number)
    draft.take("scaler.backoff_factor", call, "decr_ratio", 0.8, scaling.number)
    if draft.settings.get("scaler.backoff_interval", 1) != 1:
        draft.find(
            "lost",
            call.place,
            "Finite steps between overflows do not reset the manager's count of them; a recipe's "
            "backoff_interval counts overflows in a row.",
            "decr_every_n_nan_or_inf=1, if the script may change",
        )


def keras_2_method(call: Call, draft: Draft) -> None:
    """``get_scaled_loss`` and ``get_unscaled_gradients``: Keras 3 has them no more."""
    if call.name.endswith("get_unscaled_gradients"):
        draft.seen[clipping.UNSCALED] = call.place
    _seen(draft).is_keras_2 = True


# -- optimizers, models, layers


def optimizer(call: Call, draft: Draft) -> None:
    """An optimizer of Keras: what it takes of clipping, accumulation and a fixed scale."""
    passed = {**call.arguments, **call.extra}
    plain = Call(call.name, call.place, passed, unpacked=None)
    for argument, name in _CLIPPINGS.items():
        if argument in passed:
            clipping.take(draft, name, plain, argument, clipping.limit)
    if "gradient_accumulation_steps" in passed:
        argument = "gradient_accumulation_steps"
        draft.take("step.accumulate", plain, argument, None, _unless_none(scaling.whole))
        _seen(draft).accumulates = True
    if "loss_scale_factor" in passed:
        _seen(draft).scaler = call.place
        _take_fixed(plain, draft, "loss_scale_factor")


_CLIPPINGS: Mapping[str, str] = {
    "global_clipnorm": "clip_norm",
    "clipnorm": "clip_each_norm",
    "clipvalue": "clip_value",
}


def optimizer_attribute(call: Call, draft: Draft) -> None:
    """``optimizer.global_clipnorm = 1.0``, and what else Keras' optimizers take."""
    name = call.name.rpartition(".")[2]
    optimizer(Call(call.name, call.place, {name: call.arguments["value"]}), draft)


def clip_by_global_norm(call: Call, draft: Draft) -> None:
    """``tf.clip_by_global_norm(t_list, clip_norm)``."""
    clipping.take(draft, "clip_norm", call, "clip_norm")
    clipping.note_order(draft, call)


def clip_by_norm(call: Call, draft: Draft) -> None:
    """``tf.clip_by_norm(t, clip_norm, axes=None)``."""
    if "axes" in call.arguments:
        msg = "It clips the norms of a part of each gradient; a recipe clips that of all of it."
        draft.find("lost", call.place, msg, "keep this call, between unscaling and the update.")
    elif _is_of_gradients(call):
        clipping.take(draft, "clip_each_norm", call, "clip_norm")
        clipping.note_order(draft, call)
    else:
        msg = f"It clips {call.place_of('t').text}; whether that is a gradient is not known."
        draft.find("unknown", call.place, msg, "step.clip_each_norm in the recipe, if it is one.")


def clip_by_value(call: Call, draft: Draft) -> None:
    """``tf.clip_by_value(t, clip_value_min, clip_value_max)``, where ``t`` is a gradient."""
    if _is_of_gradients(call):
        clipping.within(call, draft, "clip_value_min", "clip_value_max")
        clipping.note_order(draft, call)


def _is_of_gradients(call: Call) -> bool:
    """By its name, or by that of what a loop around it goes over."""
    written = call.place_of("t").text
    loops = (over for name, over in call.loops.items() if name in re.findall(r"\w+", written))
    return any(_GRADIENT.search(text) for text in (written, *loops))


_GRADIENT = re.compile(r"grad|gvs?\b|^g\b", re.IGNORECASE)


def compile_model(call: Call, draft: Draft) -> None:
    """``model.compile(...)``: Keras scales the loss of float16 models by itself."""
    try:
        if call.flag("auto_scale_loss", True):
            _seen(draft).compiled = call.place
    except NotKnown:
        _seen(draft).compiled = call.place


def layer(call: Call, draft: Draft) -> None:
    """A layer of Keras with a dtype of its own: kept in float32, or the first that is low."""
    passed = Call(call.name, call.place, {**call.arguments, **call.extra})
    if "dtype" not in passed.arguments:
        return
    try:
        name = str(_policy_name(passed, "dtype", draft))
    except NotKnown as error:
        # tensors have dtypes as well, and a layer may be of any: unless a policy is made for some
        if _seen(draft).policies and "policy.level" not in draft.settings:
            draft.set("policy.lists", "tensorflow")
            draft.unknown["policy.level"] = error.place
        return
    dtype = name.removeprefix("mixed_")
    if name == "float32":
        _seen(draft).float32_layers.append(passed)
    elif dtype in LOW_DTYPES and not _is_low(draft):
        take_policy(name, passed, draft)
        draft.find(
            "lost",
            call.place,
            f"Layers without a dtype are float32 there; the recipe runs all in {dtype} but for keep.",
            "name the others under keep.",
        )


def _is_low(draft: Draft) -> bool:
    level = "policy.level"
    return level in draft.unknown or draft.settings.get(level, "O0") != "O0"


# -- when all has been seen


def finish(draft: Draft) -> None:
    """What layers and ``compile`` mean under the policy of the file."""
    seen = _seen(draft)
    if seen.scaler is not None and "policy.level" not in {*draft.settings, *draft.unknown}:
        if draft.seen.keys().isdisjoint(_POLICIES):
            draft.unknown["policy.level"] = seen.scaler  # another file says it
        else:
            draft.set("policy.level", "O0")
    if _is_low(draft):
        for each in seen.float32_layers:
            _keep(each, draft)
    if draft.settings.get("policy.dtype") == "float16" and not scaling.known(draft):
        _take_keras_own_scaling(seen, draft)
    moves = "scaler.like" in draft.settings and draft.settings.get("scaler.dynamic", True)
    if seen.is_keras_2 and moves:
        draft.set("scaler.min_scale", 1.0)
        draft.comments["scaler.min_scale"] = "the floor of Keras 2"
    if seen.policy is not None or seen.scaler is not None:
        _tell_of_scaled_clipping(draft)
    if seen.accumulates and draft.settings.get("step.accumulate") != 1:
        draft.set("step.on_overflow", "drop_microbatch")
        draft.comments["step.on_overflow"] = "as Keras accumulates"


def _tell_of_scaled_clipping(draft: Draft) -> None:
    clipping.tell_of_order(
        draft,
        "global_clipnorm, clipnorm or clipvalue of the inner optimizer, which get unscaled gradients.",
    )


def _take_keras_own_scaling(seen: _Seen, draft: Draft) -> None:
    compiled = seen.compiled or draft.seen.get(scaling.COMPILED)
    if compiled is None or draft.settings.get("policy.level") == "O1":
        scaling.never(draft)
        if seen.policy is not None:
            draft.find(
                "note",
                seen.policy,
                "No LossScaleOptimizer, and no compile() that would add one: Keras scales no loss then. "
                "A scale of the file's own making cannot be read.",
                "say it: scaler.init_scale, scaler.growth_interval, ...",
            )
        return
    scaling.like(draft, "keras")
    draft.comments["scaler.like"] = "compile() scales the loss by itself"
    draft.find(
        "note",
        compiled,
        "compile() wraps the optimizer in Keras' LossScaleOptimizer where the model's policy is "
        "mixed_float16: 2**15 at first, doubled after 2000 finite steps.",
        "compile(auto_scale_loss=False) does not.",
    )


def _keep(call: Call, draft: Draft) -> None:
    try:
        name = call.value("name", None)
    except NotKnown:
        name = None
    if isinstance(name, str):
        kept = draft.settings.get("policy.keep", [])
        draft.set("policy.keep", [*kept, *([] if name in kept else [name])])
        draft.comments["policy.keep"] = 'dtype="float32"'
        return
    draft.find(
        "lost",
        call.place_of("dtype"),
        f"This {call.name.rpartition('.')[2]} computes in float32 there. It has no name by which a "
        "recipe could keep it so; what the model returns is float32 anyway (policy.output_dtype).",
        'pass it name="head", and keep = ["head"].',
    )


# -- names


def _spelled(name: str, *roots: str) -> dict[str, str]:
    """The other spellings of ``keras.<name>``."""
    return {f"{root}.{name}": f"keras.{name}" for root in (*_KERAS, *roots)}


_KERAS = ("tensorflow.keras", "tf_keras", "tensorflow.compat.v2.keras", "tensorflow.python.keras")
_TENSORFLOW = ("tensorflow.compat.v1", "tensorflow.compat.v2")

_OPTIMIZERS = tuple(
    f"keras.optimizers.{name}"
    for name in (
        *("SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Adafactor"),
        *("Nadam", "Ftrl", "Lion", "Lamb", "Muon"),
    )
)
_OF_OPTIMIZERS = (
    *("global_clipnorm", "clipnorm", "clipvalue", "gradient_accumulation_steps"),
    *("loss_scale_factor",),
)
_MODELS = ("keras.Model", "keras.Sequential")
_LAYERS = tuple(
    f"keras.layers.{name}" for name in sorted({*op_table.native_names("keras_layers"), "Lambda"})
)
_COMPILE = (
    *("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics"),
    *("run_eagerly", "steps_per_execution", "jit_compile", "auto_scale_loss"),
)
_SCALER = "keras.optimizers.LossScaleOptimizer"
_OLD = "keras.mixed_precision.experimental"
_OLD_SCALER = f"{_OLD}.LossScaleOptimizer"
_OLD_SCALES = "tensorflow.mixed_precision.experimental"
_CONTRIB = "tensorflow.contrib.mixed_precision"
_REWRITER = "tensorflow.train.experimental.enable_mixed_precision_graph_rewrite"
_POLICY_OBJECTS = ("keras.DTypePolicy", f"{_OLD}.Policy")
_SET_OPTIONS = "tensorflow.config.optimizer.set_experimental_options"
_POLICIES = ("keras.config.set_dtype_policy", f"{_OLD}.set_policy", _REWRITER, _SET_OPTIONS)

_CALLS: Mapping[str, tuple[tuple[str, ...], Handler]] = {
    "keras.config.set_dtype_policy": (("policy",), set_policy),
    f"{_OLD}.set_policy": (("policy",), set_policy),
    "keras.DTypePolicy": (("name",), make_policy),
    f"{_OLD}.Policy": (("name", "loss_scale"), make_policy),
    "keras.config.set_floatx": (("floatx",), set_floatx),
    _SET_OPTIONS: (("options",), set_options),
    _REWRITER: (("opt", "loss_scale"), enable_graph_rewrite),
    "os.environ.__setitem__": (("key", "value"), set_environment),
    "os.environ.setdefault": (("key", "value"), set_environment),
    "os.putenv": (("key", "value"), set_environment),
    _SCALER: (
        ("inner_optimizer", "initial_scale", "dynamic_growth_steps", "name", "dynamic"),
        loss_scale_optimizer,
    ),
    _OLD_SCALER: (("optimizer", "loss_scale"), experimental_optimizer),
    f"{_OLD_SCALES}.DynamicLossScale": (
        ("initial_loss_scale", "increment_period", "multiplier"),
        dynamic_loss_scale,
    ),
    f"{_OLD_SCALES}.FixedLossScale": (("loss_scale_value",), fixed_loss_scale),
    f"{_CONTRIB}.LossScaleOptimizer": (("opt", "loss_scale_manager"), contrib_optimizer),
    f"{_CONTRIB}.FixedLossScaleManager": (("loss_scale", "enable_loss_scale"), fixed_manager),
    f"{_CONTRIB}.ExponentialUpdateLossScaleManager": (
        (
            *("init_loss_scale", "incr_every_n_steps", "decr_every_n_nan_or_inf"),
            *("incr_ratio", "decr_ratio"),
        ),
        exponential_manager,
    ),
    **{
        f"{scaler}.{method}": ((argument,), keras_2_method)
        for scaler in (_SCALER, _OLD_SCALER)
        for method, argument in {
            "get_scaled_loss": "loss",
            "get_unscaled_gradients": "grads",
        }.items()
    },
    **dict.fromkeys(_OPTIMIZERS, (("learning_rate",), optimizer)),
    **{
        f"{each}.{name}": (("value",), optimizer_attribute)
        for each in ("keras.optimizers.Optimizer", *_OPTIMIZERS)
        for name in _OF_OPTIMIZERS
    },
    "tensorflow.clip_by_global_norm": (("t_list", "clip_norm", "use_norm"), clip_by_global_norm),
    "tensorflow.clip_by_norm": (("t", "clip_norm", "axes"), clip_by_norm),
    "tensorflow.clip_by_value": (("t", "clip_value_min", "clip_value_max"), clip_by_value),
    **{f"{model}.compile": (_COMPILE, compile_model) for model in _MODELS},
    **dict.fromkeys(_LAYERS, ((), layer)),
}


def _aliases() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in (*(n for n in _CALLS if n.startswith("keras.")), *_MODELS):
        found |= _spelled(name.removeprefix("keras."))
    renamed = {
        "keras.config.set_dtype_policy": (
            *("keras.mixed_precision.set_dtype_policy", "keras.mixed_precision.set_global_policy"),
            *("keras.dtype_policies.set_dtype_policy",),
        ),
        "keras.DTypePolicy": (
            *("keras.dtype_policies.DTypePolicy", "keras.mixed_precision.DTypePolicy"),
            *("keras.mixed_precision.Policy", "keras.FloatDTypePolicy"),
        ),
        "keras.config.set_floatx": ("keras.backend.set_floatx",),
        _SCALER: ("keras.mixed_precision.LossScaleOptimizer",),
        "keras.Model": ("keras.models.Model", "keras.engine.training.Model"),
        "keras.Sequential": ("keras.models.Sequential",),
        **{
            f"{_OLD_SCALES}.{name}": (
                *(
                    f"tensorflow.train.experimental.{name}",
                    f"tensorflow.compat.v1.train.experimental.{name}",
                ),
                *(f"tensorflow.compat.v1.mixed_precision.{name}",),
                *(f"tensorflow.compat.v1.mixed_precision.experimental.{name}", f"{_OLD}.{name}"),
            )
            for name in ("DynamicLossScale", "FixedLossScale")
        },
        _OLD_SCALER: (
            *("tensorflow.train.experimental.MixedPrecisionLossScaleOptimizer",),
            *("tensorflow.compat.v1.train.experimental.MixedPrecisionLossScaleOptimizer",),
            *("tensorflow.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer",),
        ),
        _REWRITER: (
            *("tensorflow.compat.v1.train.experimental.enable_mixed_precision_graph_rewrite",),
            *("tensorflow.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite",),
            *("tensorflow.mixed_precision.experimental.enable_mixed_precision_graph_rewrite",),
        ),
    }
    for name, others in renamed.items():
        for other in others:
            found |= {other: name}
            if other.startswith("keras."):
                found |= {f"{root}.{other.removeprefix('keras.')}": name for root in _KERAS}
    for name in (
        "config.optimizer.set_experimental_options",
        "clip_by_global_norm",
        "clip_by_norm",
        "clip_by_value",
    ):
        found |= {f"{root}.{name}": f"tensorflow.{name}" for root in _TENSORFLOW}
    for name in _OPTIMIZERS:
        found |= {f"{root}.optimizers.legacy.{name.rpartition('.')[2]}": name for root in _KERAS}
    return found


DIALECT = Dialect(
    framework="tensorflow",
    signatures={
        **{name: signature for name, (signature, _) in _CALLS.items()},
        **dict.fromkeys(_MODELS, ()),
    },
    aliases=_aliases(),
    handlers={name: handler for name, (_, handler) in _CALLS.items()},
    words=(
        *("mixed_precision", "mixed_float16", "mixed_bfloat16", "dtype_policy", "DTypePolicy"),
        *("LossScale", "loss_scale_factor", "set_floatx", "AUTO_MIXED_PRECISION"),
    ),
    finish=finish,
)
