"""Models and optimizers of Keras on JAX (``KERAS_BACKEND=jax``): their layers, and their variables.

A Keras variable is read and assigned where it stands, so traced values can be put into it as into a Variable
of nnx. ``variable_of`` makes it one: all that the adapter does with Variables it does with those of Keras.

A layer is named as the attribute that holds it: ``encoder.blocks.0`` for an item of a list. Where no
attribute does, it has its Keras name. So it is on TensorFlow, and weights have the same names there.

This module imports Keras. ``kinds.keras`` imports it, if the process uses Keras on JAX.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
from flax import nnx

from ampbridge.adapters.backend import Kind, Model, Optimizer, OwnPrecisionNotice
from ampbridge.checkpoints.held import Held as HeldWeight
from ampbridge.checkpoints.held import Roles, dotted, unique
from ampbridge.errors import (
    ArgumentError,
    ArgumentTypeError,
    CallOrderError,
    StateError,
    UnsupportedError,
)
from ampbridge.policies.policy import Policy
from ampbridge_jax import _private
from ampbridge_jax.model.kinds import Flax, kind_of, named_modules
from ampbridge_jax.model.model_calls import decoration_of
from ampbridge_jax.optimizers import Optax
from ampbridge_jax.training_state import all_variables, names_of

Layer, Variable = keras.Layer, keras.Variable
PARTS = Layer, keras.optimizers.Optimizer

_KINDS: Mapping[type, Kind] = {
    Layer: "model",
    keras.optimizers.Optimizer: "optimizer",
    keras.losses.Loss: "loss",
    keras.optimizers.schedules.LearningRateSchedule: "scheduler",
}


def kind(obj: object) -> Kind | None:
    """See ``Backend.kind``, of Keras' objects.

    Raises:
        UnsupportedError: for a layer that is a module of flax as well.
    """
    if isinstance(obj, Layer) and isinstance(obj, nnx.Module):
        raise UnsupportedError(
            f"{type(obj).__name__} of Keras is a module of flax here, which refuses what a step does.\n"
            "Hint: KERAS_NNX_ENABLED=false, ahead of `import keras`"
        )
    return next((kind for cls, kind in _KINDS.items() if isinstance(obj, cls)), None)


# -- variables


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


# -- what is saved


def _roles() -> dict[type, Roles]:
    """What layers call their variables -> role and axes; "c" of a depthwise kernel has "m" outputs."""
    scale_and_offset = {"gamma": ("norm.scale", "c"), "beta": ("norm.offset", "c")}
    statistics = {"moving_mean": ("norm.mean", "c"), "moving_variance": ("norm.variance", "c")}
    found: dict[str, Roles] = {
        "Dense": {"kernel": ("dense.kernel", "io"), "bias": ("dense.bias", "o")},
        "Embedding": {"embeddings": ("embedding.table", "no")},
        "BatchNormalization": scale_and_offset | statistics,
        "LayerNormalization": scale_and_offset,
        "GroupNormalization": scale_and_offset,
        "RMSNormalization": {"scale": ("norm.scale", "c")},
    }
    bias = {"bias": ("conv.bias", "o")}
    for rank, window in {"1D": "w", "2D": "hw", "3D": "dhw"}.items():
        kernel, depthwise = ("conv.kernel", f"{window}io"), ("depthwise_conv.kernel", f"{window}cm")
        separable = {"depthwise_kernel": depthwise, "pointwise_kernel": kernel}
        transposed = ("conv_transpose.kernel", f"{window}oi")
        found[f"Conv{rank}"] = {"kernel": kernel, **bias}
        found[f"Conv{rank}Transpose"] = {"kernel": transposed, **bias}
        found[f"DepthwiseConv{rank}"] = {"kernel": depthwise, **bias}
        found[f"SeparableConv{rank}"] = {**separable, **bias}
    layers = keras.layers  # of an older Keras, without some of them
    return {getattr(layers, name): own for name, own in found.items() if hasattr(layers, name)}


# -- models


class Keras(Flax):
    """Models of Keras, and layers; what is in a part is asked of optimizers too."""

    module = node = Layer
    call = "call"
    modes = ()
    products = (
        keras.layers.Dense,
        keras.layers.Conv1D,
        keras.layers.Conv2D,
        keras.layers.Conv3D,
    )
    roles = _roles()
    hides_attributes = True
    unfreeze = "layer.trainable = True"
    examples: Mapping[str, str] = {
        "model": "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])",
        "optimizer": "optimizer = keras.optimizers.SGD(0.1)",
        "float32 model": "layers under keras.config.set_dtype_policy('float32')",
        "loss_fn": "def loss_fn(model, x, y): return criterion(y, model(x, training=True))",
    }

    def items(self, part: Any, lasting: bool = False) -> list[tuple[str, Any]]:
        """The layers directly below one; of an optimizer what it changes."""
        return _parts(part, lasting) if isinstance(part, Layer) else self.own_variables(part)

    def own_variables(self, part: Any) -> list[tuple[str, Held]]:
        """The variables that a layer holds itself, in the order in which Keras lists them.

        Of an optimizer those that it changes.
        """
        if not isinstance(part, Layer):
            return [(str(place), v) for place, v in enumerate(OPTIMIZERS.changed_by(part))]
        own = {name: value for name, value in _attributes(part) if isinstance(value, Variable)}
        known = {id(v) for v in own.values()}
        known |= {id(v) for _, below in _parts(part) for v in below.variables}
        others = [v for v in part.variables if id(v) not in known]
        names = unique([*own, *map(_without_number, others)])[len(own) :]
        own.update(zip(names, others, strict=True))
        places = {id(v): place for place, v in enumerate(part.variables)}
        ordered = sorted(own.items(), key=lambda item: places.get(id(item[1]), len(places)))
        return [(name, variable_of(variable)) for name, variable in ordered]

    def own_parameters(self, layer: Model) -> list[tuple[str, Held]]:
        """Those of ``own_variables`` that were made to be trained, frozen ones as well."""
        trained = {id(v) for v in layer.weights} - {id(v) for v in _private.buffers(layer)}
        return [(name, v) for name, v in self.own_variables(layer) if id(v.of) in trained]

    def parameters(self, model: Model) -> list[Any]:
        return [variable_of(v) for v in model.trainable_variables]

    def weights_among(self, held: Sequence[HeldWeight], model: Model) -> list[HeldWeight]:
        """Those that Keras counts among the weights: all but the states of seed generators."""
        counted = set(map(id, model.weights))
        return [each for each in held if id(each.tensor.of) in counted]

    def has_own_precision(self, layer: Model) -> bool:
        """Whether a layer was made under another dtype policy than float32."""
        dtypes = layer.compute_dtype, layer.variable_dtype, layer.quantization_mode
        return dtypes != ("float32", "float32", None)

    def content(self, part: Any) -> dict[str, Any]:
        """Settings, variables, the layers below it."""
        own = vars(part)
        found = dict(_attributes(part))
        found |= {name: own[name] for name in _private.KERAS_SETTINGS if name in own}
        if isinstance(part, Layer):
            found |= {f"layer {name}": below for name, below in _parts(part)}
        return found | {f"variable {name}": v.of for name, v in self.own_variables(part)}

    def notice_own_precision(self, model: Model, notice: OwnPrecisionNotice) -> None:
        first: dict[str, str] = {}
        for _, layer in named_modules(model):
            if layer.dtype_policy.name.startswith("mixed_"):
                first.setdefault(layer.compute_dtype, layer.name)
        for dtype, name in sorted(first.items()):
            what = f"keras.config.set_dtype_policy('mixed_{dtype}'), under which {name!r} was made,"
            notice(what, dtype, counts=True)

    def methods(self, cls: type) -> dict[str, Callable[..., Any]]:
        name = "make_train_function"
        return {name: _make_train_function} if hasattr(cls, name) else {}

    def check_built(self, model: Model) -> None:
        """Refuse a model that has no variables yet.

        Raises:
            CallOrderError: if it has not been built.
        """
        if not model.built:
            raise CallOrderError(
                f"{model.name!r} ({type(model).__name__}) has not been built: it has no weights yet.\n"
                "Hint: model.build(input_shape), or model(x) once, before its weights are read or set."
            )

    def check_policy(self, policy: Policy) -> None:
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

    def check_for_optax(self, model: Model) -> None:
        """Refuse optimizers that are not Keras'.

        Raises:
            ArgumentError: it is one of nnx.
        """
        raise ArgumentError(
            f"A {type(model).__name__} of Keras trains with Keras' optimizers.\n"
            f"Hint: {self.examples['optimizer']}"
        )

    def forget_traces(self, module: Model) -> None:
        """Have a model compile its own functions anew: ``fit``, ``evaluate`` and ``predict``."""
        if hasattr(module, "make_train_function"):
            module.train_function = module.test_function = module.predict_function = None

    def clear_losses(self, module: Model) -> None:
        """Drop what ``add_loss`` has left: values of a trace."""
        _private.clear_losses(module)


KERAS = Keras()


def _make_train_function(self: Any, force: bool = False) -> Any:
    """``fit`` and ``train_on_batch`` of a decorated model call it ahead of the first batch.

    Raises:
        UnsupportedError: if in float16 small gradients would become zero: its optimizer does not scale the
            loss.
    """
    optimizer, decoration = self.optimizer, decoration_of(self)
    if decoration is not None and decoration.policy.dtype == "float16" and not _scales(optimizer):
        raise UnsupportedError(
            f"{type(optimizer).__name__} does not scale the loss, and small gradients become zero in "
            "float16.\n"
            "Hint: model.compile(keras.optimizers.LossScaleOptimizer(optimizer), loss), where amp.decorate "
            "got the model alone, or optimizer itself; or "
            f"policy='{decoration.policy.level}:bfloat16'; or amp.train_step(loss_fn, model, optimizer)"
        )
    return super(type(self), self).make_train_function(force)


def _scales(optimizer: Optimizer) -> bool:
    wraps_another = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return wraps_another or optimizer.loss_scale_factor is not None


def _parts(layer: Any, lasting: bool = False) -> list[tuple[str, Any]]:
    """The layers directly below, without InputLayers, which compute nothing."""

    def is_part(value: Any) -> bool:
        return isinstance(value, Layer) and not isinstance(value, keras.layers.InputLayer)

    parts = [(name, value) for name, value in _attributes(layer) if is_part(value)]
    known = {id(part) for _, part in parts}
    others = [x for x in _private.sublayers(layer) if is_part(x) and id(x) not in known]
    names = unique(map(_without_number, others)) if lasting else [part.name for part in others]
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
            yield from dotted(name, value)


# -- optimizers

_RATE = "learning_rate"


class KerasOptimizers(Optax):
    """Optimizers of Keras, which know what they train once they are built."""

    may_be_low = False

    def acquaint(self, model: Model, optimizer: Optimizer) -> None:
        """Build an optimizer that has not been, for the variables of ``model``, and check both.

        Raises:
            ArgumentError: for another model than Keras'.
            ArgumentTypeError: for a LossScaleOptimizer.
            CallOrderError: for a model that has not been built.
            UnsupportedError: for an optimizer that scales or accumulates by itself.
        """
        kind = kind_of(model)
        if kind is not KERAS:
            raise ArgumentError(
                f"{type(optimizer).__name__} of Keras trains Keras' models, not a {type(model).__name__}.\n"
                f"Hint: {kind.examples['optimizer']}"
            )
        kind.check_built(model)
        _check_optimizer(optimizer)
        if not optimizer.built:
            with _private.outside_of_traces():
                optimizer.build(model.trainable_variables)

    def roots(self, optimizer: Optimizer) -> tuple[Any, ...]:
        return ()

    def parameters(self, optimizer: Optimizer) -> list[Any]:
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

    def slots(self, optimizer: Optimizer) -> list[tuple[str, Held]]:
        """The variables of an optimizer's own, with their paths."""
        return [(v.path, variable_of(v)) for v in optimizer.variables]

    def update(
        self, optimizer: Optimizer, gradients: dict[int, Any], changing: Sequence[Any]
    ) -> None:
        updated = [p for p in self.parameters(optimizer) if gradients.get(id(p)) is not None]
        optimizer.apply([gradients[id(p)] for p in updated], [p.of for p in updated])

    def copied(
        self, model: Model, optimizer: Optimizer, memo: dict[int, Any]
    ) -> tuple[Model, Optimizer]:
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
            [*other.variables, *twin.variables],
            [*optimizer.variables, *model.variables],
            strict=True,
        ):
            variable.assign(present.value)
        return twin, other

    def state(self, optimizer: Optimizer, model: Model) -> dict[str, Held]:
        """Slots, counters, and the states of seed generators.

        A slot is named by its attribute; in a list of one for each parameter, by the weight too.

        Raises:
            UnsupportedError: if the optimizer holds some in other ways.
        """
        names = names_of([*map(variable_of, _private.built_for(optimizer))], model)
        found = {
            name.lstrip("_"): variable_of(v)
            for name, v in vars(optimizer).items()
            if isinstance(v, Variable)
        }
        for attribute, values in _private.slot_lists(optimizer).items():
            pairs, slot = zip(names, values, strict=True), attribute.lstrip("_")
            found |= {
                f"{name}/{slot}": variable_of(v) for name, v in pairs if isinstance(v, Variable)
            }
        known = {id(v) for v in found.values()}
        unknown = [path for path, v in self.slots(optimizer) if id(v) not in known]
        if unknown:
            raise UnsupportedError(
                f"{type(optimizer).__name__} holds {len(unknown)} variables neither as attributes nor in "
                f"lists with one for each parameter, so what they mean is not known: {unknown[:4]}.\n"
                "Hint: self.momentums = self.add_optimizer_variables(variables, 'momentum')"
            )
        found.pop(_RATE, None)
        every = all_variables(model)
        counted = {id(each.tensor) for each in KERAS.weights_among(every, model)}
        random = [each for each in every if id(each.tensor) not in counted]
        return {**found, **{f"random/{each.name}": each.tensor for each in random}}

    def settings(self, optimizer: Optimizer) -> dict[str, float | None]:
        """The learning rate, None if it is a schedule."""
        rate = vars(optimizer).get(f"_{_RATE}")
        return {_RATE: float(rate.value) if isinstance(rate, Variable) else None}

    def check_settings(self, optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
        """Refuse a rate that is none, and one of an optimizer with another kind of rate.

        Raises:
            StateError: if ``set_settings`` cannot take ``saved``.
        """
        present, rate = self.settings(optimizer)[_RATE], saved.get(_RATE)
        is_number = (
            isinstance(rate, (int, float)) and not isinstance(rate, bool) and 0 <= rate < math.inf
        )
        if is_number != (present is not None) or not (is_number or rate is None):
            what = "a schedule" if present is None else "a number"
            raise StateError(
                f"The state's learning_rate={rate!r:.100} is for another {type(optimizer).__name__}: that of "
                f"this one is {what}.\nHint: None stands for a keras.optimizers.schedules object."
            )

    def set_settings(self, optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
        if saved[_RATE] is not None:
            optimizer.learning_rate = saved[_RATE]


OPTIMIZERS = KerasOptimizers()


def _check_optimizer(optimizer: Optimizer) -> None:
    """Refuse what scales or accumulates by itself."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ArgumentTypeError(
            "A LossScaleOptimizer divides gradients by a scale of its own; GradScaler has done so.\n"
            "Hint: optimizer = optimizer.inner_optimizer; or, for fit: amp.decorate(model, policy=policy), "
            "and this optimizer in model.compile(optimizer, loss)"
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
