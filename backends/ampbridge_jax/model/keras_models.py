"""Models and optimizers of Keras on JAX (``KERAS_BACKEND=jax``): their layers, and their variables.

A Keras variable is read and assigned where it stands, so traced values can be put into it as into a Variable
of nnx. ``variable_of`` makes it one: all that the adapter does with Variables it does with those of Keras.

A layer is named as the attribute that holds it: ``encoder.blocks.0`` for an item of a list. Where no
attribute does, it has its Keras name. So it is on TensorFlow, and weights have the same names there.
"""

from __future__ import annotations

import copy
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from flax import nnx

from ampbridge.adapters.backend import Kind, OwnPrecisionNotice
from ampbridge.checkpoints import held, outside
from ampbridge.errors import ArgumentTypeError, CallOrderError, StateError, UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge_jax import _private


def _keras() -> Any:
    """Keras, if this process has imported it, and it runs on JAX."""
    keras: Any = sys.modules.get("keras")
    return keras if hasattr(keras, "Layer") and keras.config.backend() == "jax" else None


def kind(obj: object) -> Kind | None:
    """See ``Backend.kind``, of Keras' objects.

    Raises:
        UnsupportedError: for a layer that is a module of flax as well.
    """
    keras = _keras()
    if keras is None:
        return None
    if isinstance(obj, keras.Layer):
        if isinstance(obj, nnx.Module):
            raise UnsupportedError(
                f"{type(obj).__name__} of Keras is a module of flax here, which refuses what a step does.\n"
                "Hint: KERAS_NNX_ENABLED=false, ahead of `import keras`"
            )
        return "model"
    if isinstance(obj, keras.optimizers.Optimizer):
        return "optimizer"
    if isinstance(obj, keras.losses.Loss):
        return "loss"
    is_schedule = isinstance(obj, keras.optimizers.schedules.LearningRateSchedule)
    return "scheduler" if is_schedule else None


def is_layer(obj: object) -> bool:
    """Whether it is a layer or a model of Keras."""
    keras = _keras()
    return keras is not None and isinstance(obj, keras.Layer)


def is_optimizer(obj: object) -> bool:
    """Whether it is an optimizer of Keras."""
    keras = _keras()
    return keras is not None and isinstance(obj, keras.optimizers.Optimizer)


def is_variable(obj: object) -> bool:
    """Whether it is a variable of Keras."""
    keras = _keras()
    return keras is not None and isinstance(obj, keras.Variable)


def is_layer_class(cls: type) -> bool:
    """Whether its instances are layers of Keras."""
    keras = _keras()
    return keras is not None and issubclass(cls, keras.Layer)


def is_part(obj: object) -> bool:
    """Whether it is a layer or an optimizer of Keras."""
    return is_layer(obj) or is_optimizer(obj)


class Held(nnx.Variable[Any]):
    """A variable of Keras, as a Variable of nnx: its array is where Keras has it.

    It belongs to no trace.
    """

    __slots__ = ("of",)

    def __init__(self, of: Any) -> None:
        object.__setattr__(self, "of", of)
        _private.fill_each_its_way()
        with _private.outside_of_traces():
            super().__init__(_private.value_in_keras(of))

    @property
    def _raw_value(self) -> Any:
        return _private.value_in_keras(self.of)

    @_raw_value.setter
    def _raw_value(self, value: Any) -> None:
        _private.fill_in_keras(self.of, value)


def variable_of(variable: Any) -> Held:
    """The ``Held`` of a Keras variable, which is the same each time."""
    found: Held | None = vars(variable).get(_HELD)
    if found is None or found.of is not variable:  # a copy of the variable has that of the original
        found = Held(variable)
        setattr(variable, _HELD, found)
    return found


_HELD = "_ampbridge_held"


# -- layers


def named_layers(model: Any, lasting: bool = False) -> list[tuple[str, Any]]:
    """The model and every layer below it, each once, with its dotted name; outer before inner.

    Args:
        lasting: whether names are of the model alone. Keras numbers its layers over the whole process.
    """
    found: dict[int, tuple[str, Any]] = {}
    _collect("", model, lasting, found)
    return list(found.values())


def _collect(name: str, layer: Any, lasting: bool, found: dict[int, tuple[str, Any]]) -> None:
    if id(layer) not in found:
        found[id(layer)] = name, layer
        for part_name, part in _parts(layer, lasting):
            _collect(f"{name}.{part_name}".lstrip("."), part, lasting, found)


def own_variables(layer: Any) -> list[tuple[str, Held]]:
    """The variables that a layer holds itself, not by its parts, in the order in which Keras lists them."""
    own = {name: value for name, value in _attributes(layer) if is_variable(value)}
    known = {id(v) for v in own.values()}
    known |= {id(v) for _, part in _parts(layer, lasting=False) for v in part.variables}
    others = [v for v in layer.variables if id(v) not in known]
    names = held.unique([*own, *map(_without_number, others)])[len(own) :]
    own.update(zip(names, others, strict=True))
    places = {id(v): place for place, v in enumerate(layer.variables)}
    ordered = sorted(own.items(), key=lambda item: places.get(id(item[1]), len(places)))
    return [(name, variable_of(variable)) for name, variable in ordered]


def own_parameters(layer: Any) -> list[tuple[str, Held]]:
    """Those of ``own_variables`` that were made to be trained, frozen ones as well."""
    trained = {id(v) for v in layer.weights} - {id(v) for v in _private.buffers(layer)}
    return [(name, v) for name, v in own_variables(layer) if id(v.of) in trained]


def _parts(layer: Any, lasting: bool) -> list[tuple[str, Any]]:
    """The layers directly below, without InputLayers, which compute nothing."""

    def is_part(value: Any) -> bool:
        return is_layer(value) and not isinstance(value, _keras().layers.InputLayer)

    parts = [(name, value) for name, value in _attributes(layer) if is_part(value)]
    known = {id(part) for _, part in parts}
    others = [x for x in _private.sublayers(layer) if is_part(x) and id(x) not in known]
    names = held.unique(map(_without_number, others)) if lasting else [part.name for part in others]
    return parts + list(zip(names, others, strict=True))


def _without_number(named: Any) -> str:
    """The name of a layer or a variable, without the number if Keras has made it up."""
    of_class: str = _private.snake_case(type(named).__name__)
    is_made_up = re.fullmatch(rf"{re.escape(of_class)}(_\d+)?", named.name)
    return of_class if is_made_up else str(named.name)


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    """Attributes and the items of containers among them, dotted; of Keras' own classes public ones only."""
    hides = type(owner).__module__.partition(".")[0] == "keras"
    for name, value in vars(owner).items():
        if not (name in _private.KERAS_RECORDS or (hides and name.startswith("_"))):
            yield from held.dotted(name, value)


def content(part: Any) -> dict[str, Any]:
    """What code may read of a layer or an optimizer: settings, variables, the layers below it."""
    own = vars(part)
    found = dict(_attributes(part))
    found |= {name: own[name] for name in _private.KERAS_SETTINGS if name in own}
    if is_optimizer(part):
        return {**found, **{f"variable {i}": v.of for i, v in enumerate(changed_by(part))}}
    found |= {f"layer {name}": below for name, below in _parts(part, lasting=False)}
    return found | {f"variable {name}": v.of for name, v in own_variables(part)}


def check_built(model: Any) -> None:
    """Refuse a model that has no variables yet.

    Raises:
        CallOrderError: if it has not been built.
    """
    if not model.built:
        raise CallOrderError(
            f"{model.name!r} ({type(model).__name__}) has not been built: it has no weights yet.\n"
            "Hint: model.build(input_shape), or model(x) once, before its weights are read or set."
        )


def is_product(layer: Any) -> bool:
    """Whether it is a dense layer or a convolution of Keras."""
    layers = _keras().layers if is_layer(layer) else None
    return layers is not None and isinstance(
        layer, (layers.Dense, layers.Conv1D, layers.Conv2D, layers.Conv3D)
    )


def has_own_precision(layer: Any) -> bool:
    """Whether a layer of Keras was made under another dtype policy than float32."""
    if not is_layer(layer):
        return False
    dtypes = layer.compute_dtype, layer.variable_dtype, layer.quantization_mode
    return dtypes != ("float32", "float32", None)


def noticed(model: Any, notice: OwnPrecisionNotice) -> AbstractContextManager[None]:
    """See ``Backend.noticing_own_precision``. Layers keep the policy under which they were made."""
    first: dict[str, str] = {}
    for _, layer in named_layers(model) if is_layer(model) else ():
        if layer.dtype_policy.name.startswith("mixed_"):
            first.setdefault(layer.compute_dtype, layer.name)
    for dtype, name in sorted(first.items()):
        what = f"keras.config.set_dtype_policy('mixed_{dtype}'), under which {name!r} was made,"
        notice(what, dtype, counts=True)
    return nullcontext()


def forget_traces(module: Any) -> None:
    """Have a model of Keras compile its own functions anew: ``fit``, ``evaluate`` and ``predict``."""
    if is_layer(module) and hasattr(module, "make_train_function"):
        module.train_function = module.test_function = module.predict_function = None


def check_storage(policy: Policy) -> None:
    """Refuse a policy under which Keras' variables would be low: they say that they are float32.

    Raises:
        UnsupportedError: for low masters or slots.
    """
    for name in ("masters", "slots"):
        if getattr(policy, name) != "float32":
            raise UnsupportedError(
                f"{policy!r}: of Keras' models on jax {name} are 'float32'.\n"
                f"Hint: {policy.replace(**{name: 'float32'})!r}"
            )


def check_fit(optimizer: Any, policy: Policy) -> None:
    """Refuse ``fit`` of a model that is decorated in float16 if its optimizer does not scale the loss.

    Raises:
        UnsupportedError: if small gradients would become zero.
    """
    wraps_another = isinstance(optimizer, _keras().optimizers.LossScaleOptimizer)
    if policy.dtype == "float16" and not (wraps_another or optimizer.loss_scale_factor is not None):
        raise UnsupportedError(
            f"{type(optimizer).__name__} does not scale the loss, and small gradients become zero in "
            "float16.\n"
            "Hint: model.compile(keras.optimizers.LossScaleOptimizer(optimizer), loss); or "
            f"policy='{policy.level}:bfloat16'; or amp.train_step(loss_fn, model, optimizer)"
        )


def clear_losses(modules: Iterable[Any]) -> None:
    """Drop what ``add_loss`` has left in the layers of Keras among ``modules``: values of a trace."""
    for each in filter(is_layer, modules):
        _private.clear_losses(each)


# -- what is saved


def roles() -> dict[type, held.Roles]:
    """What layers call their variables -> role and axes; "c" of a depthwise kernel has "m" outputs."""
    layers = _keras().layers
    scale_and_offset = {"gamma": ("norm.scale", "c"), "beta": ("norm.offset", "c")}
    statistics = {"moving_mean": ("norm.mean", "c"), "moving_variance": ("norm.variance", "c")}
    found: dict[type, held.Roles] = {
        layers.Dense: {"kernel": ("dense.kernel", "io"), "bias": ("dense.bias", "o")},
        layers.Embedding: {"embeddings": ("embedding.table", "no")},
        layers.BatchNormalization: scale_and_offset | statistics,
        layers.LayerNormalization: scale_and_offset,
        layers.GroupNormalization: scale_and_offset,
        layers.RMSNormalization: {"scale": ("norm.scale", "c")},
    }
    for rank, window in {"1D": "w", "2D": "hw", "3D": "dhw"}.items():
        kernels: dict[str, held.Roles] = {
            f"Conv{rank}": {"kernel": ("conv.kernel", f"{window}io")},
            f"Conv{rank}Transpose": {"kernel": ("conv_transpose.kernel", f"{window}oi")},
            f"DepthwiseConv{rank}": {"kernel": ("depthwise_conv.kernel", f"{window}cm")},
            f"SeparableConv{rank}": {
                "depthwise_kernel": ("depthwise_conv.kernel", f"{window}cm"),
                "pointwise_kernel": ("conv.kernel", f"{window}io"),
            },
        }
        for name, kernel in kernels.items():
            if hasattr(layers, name):
                found[getattr(layers, name)] = {**kernel, "bias": ("conv.bias", "o")}
    return found


def all_variables(model: Any) -> list[held.Held]:
    """Each variable of a model, under a name that is of the model alone.

    Raises:
        CallOrderError: for a model that has not been built.
    """
    check_built(model)
    every = [
        held.Held(f"{prefix}.{name}".lstrip("."), layer, name, variable)
        for prefix, layer in named_layers(model, lasting=True)
        for name, variable in own_variables(layer)
    ]
    found = list(held.each_once(every))
    names = held.unique(each.name for each in found)
    return [each._replace(name=name) for each, name in zip(found, names, strict=True)]


def weights(model: Any) -> list[held.Held]:
    """Those that Keras counts among the weights: all but the states of seed generators."""
    counted = set(map(id, model.weights))
    return [each for each in all_variables(model) if id(each.tensor.of) in counted]


def names_of(variables: Iterable[Held], model: Any) -> list[str]:
    """The names of weights; a variable that is not the model's gets its place in the list."""
    names = {id(each.tensor): each.name for each in all_variables(model)}
    return [names.get(id(v), outside.name_of(place)) for place, v in enumerate(variables)]


def state(optimizer: Any, model: Any) -> dict[str, Held]:
    """What a step changes beside the weights: slots, counters, and the states of seed generators.

    A slot is named by its attribute; in a list of one for each parameter, by the weight too.

    Raises:
        UnsupportedError: if the optimizer holds some in other ways.
    """
    names = names_of(map(variable_of, _private.built_for(optimizer)), model)
    found = {
        name.lstrip("_"): variable_of(v) for name, v in vars(optimizer).items() if is_variable(v)
    }
    for attribute, values in _private.slot_lists(optimizer).items():
        pairs, slot = zip(names, values, strict=True), attribute.lstrip("_")
        found |= {f"{name}/{slot}": variable_of(v) for name, v in pairs if is_variable(v)}
    known = {id(v) for v in found.values()}
    unknown = [path for path, v in slots(optimizer) if id(v) not in known]
    if unknown:
        raise UnsupportedError(
            f"{type(optimizer).__name__} holds {len(unknown)} variables neither as attributes nor in "
            f"lists with one for each parameter, so what they mean is not known: {unknown[:4]}.\n"
            "Hint: self.momentums = self.add_optimizer_variables(variables, 'momentum')"
        )
    found.pop(_RATE, None)
    counted = {id(each.tensor) for each in weights(model)}
    random = [each for each in all_variables(model) if id(each.tensor) not in counted]
    return {**found, **{f"random/{each.name}": each.tensor for each in random}}


_RATE = "learning_rate"


def settings_of(optimizer: Any) -> dict[str, float | None]:
    """The learning rate, None if it is a schedule."""
    if not is_optimizer(optimizer):
        return {}
    rate = vars(optimizer).get(f"_{_RATE}")
    return {_RATE: float(rate.value) if is_variable(rate) else None}


def check_settings(optimizer: Any, saved: Mapping[str, Any]) -> None:
    """Refuse a rate that is none, and one of an optimizer with another kind of rate.

    Raises:
        StateError: if ``set_settings`` cannot take ``saved``.
    """
    if not is_optimizer(optimizer):
        return
    present, rate = settings_of(optimizer)[_RATE], saved.get(_RATE)
    is_number = (
        isinstance(rate, (int, float)) and not isinstance(rate, bool) and 0 <= rate < math.inf
    )
    if is_number != (present is not None) or not (is_number or rate is None):
        what = "a schedule" if present is None else "a number"
        raise StateError(
            f"The state's learning_rate={rate!r:.100} is for another {type(optimizer).__name__}: that of "
            f"this one is {what}.\nHint: None stands for a keras.optimizers.schedules object."
        )


def set_settings(optimizer: Any, saved: Mapping[str, Any]) -> None:
    """Set what ``settings_of`` tells."""
    if is_optimizer(optimizer) and saved[_RATE] is not None:
        optimizer.learning_rate = saved[_RATE]


def copied(model: Any, optimizer: Any, memo: dict[int, Any]) -> tuple[Any, Any]:
    """See ``Backend.copied``; the model's copy is undecorated, as Keras makes it.

    Raises:
        UnsupportedError: for an optimizer of variables that the model does not hold.
    """
    twin = memo[id(model)] = copy.deepcopy(model, memo)
    other = memo[id(optimizer)] = type(optimizer).from_config(optimizer.get_config())
    pairs = zip(model.trainable_variables, twin.trainable_variables, strict=True)
    twins = {id(variable): copy_of_it for variable, copy_of_it in pairs}
    trained = _private.built_for(optimizer)
    if any(id(variable) not in twins for variable in trained):
        raise UnsupportedError(
            f"{type(optimizer).__name__} trains variables that the model does not hold.\n"
            "Hint: make both anew, and step.load(path) what step.save(path) has saved."
        )
    other.build([twins[id(variable)] for variable in trained])
    for variable, present in zip(
        [*other.variables, *twin.variables], [*optimizer.variables, *model.variables], strict=True
    ):
        variable.assign(present.value)
    return twin, other


# -- optimizers


def trained(optimizer: Any) -> list[Held]:
    """The variables that an optimizer was built for, without frozen ones.

    Raises:
        CallOrderError: for an optimizer that has not been built.
    """
    if not optimizer.built:
        raise CallOrderError(
            f"{type(optimizer).__name__} has not been built, so its parameters are not known.\n"
            "Hint: optimizer.build(model.trainable_variables)"
        )
    return [variable_of(v) for v in _private.built_for(optimizer) if v.trainable]


def slots(optimizer: Any) -> list[tuple[str, Held]]:
    """The variables of an optimizer's own, with their paths."""
    return [(v.path, variable_of(v)) for v in optimizer.variables]


def changed_by(optimizer: Any) -> list[Held]:
    """What a step of the optimizer changes."""
    return [*trained(optimizer), *(v for _, v in slots(optimizer))]


def build(model: Any, optimizer: Any) -> None:
    """Build an optimizer that has not been, for the variables of ``model``, and check both.

    Raises:
        ArgumentTypeError: for a LossScaleOptimizer.
        CallOrderError: for a model that has not been built.
        UnsupportedError: for an optimizer that scales or accumulates by itself.
    """
    check_built(model)
    check_optimizer(optimizer)
    if not optimizer.built:
        with _private.outside_of_traces():
            optimizer.build(model.trainable_variables)


def check_optimizer(optimizer: Any) -> None:
    """Refuse what scales or accumulates by itself; see ``build``."""
    if isinstance(optimizer, _keras().optimizers.LossScaleOptimizer):
        raise ArgumentTypeError(
            "A LossScaleOptimizer divides gradients by a scale of its own; GradScaler has done so.\n"
            "Hint: optimizer = optimizer.inner_optimizer"
        )
    name, factor = type(optimizer).__name__, optimizer.loss_scale_factor
    if factor is not None:
        raise UnsupportedError(
            f"{name}(loss_scale_factor={factor}) divides gradients by a scale of its own; a GradScaler "
            "has done so.\n"
            f"Hint: optimizer.loss_scale_factor = None; and scaler=amp.GradScaler({factor}, dynamic=False)"
        )
    micro_batches = optimizer.gradient_accumulation_steps
    if micro_batches:
        raise UnsupportedError(
            f"{name}(gradient_accumulation_steps={micro_batches}) holds gradients back, and does not say "
            "which call moves the weights.\n"
            f"Hint: amp.train_step(..., accumulate={micro_batches}), and an optimizer without it."
        )


def apply(optimizer: Any, gradients: Mapping[int, Any]) -> None:
    """The optimizer's own update, with gradients by the ids of its parameters.

    Those without a gradient stay as they are.
    """
    updated = [p for p in trained(optimizer) if gradients.get(id(p)) is not None]
    optimizer.apply([gradients[id(p)] for p in updated], [p.of for p in updated])
