"""Decorating a model for a policy, in place, taking that back, and copying the model.

At O2 the layers of Keras get Keras' own mixed dtype policies, as in TensorFlow's guide, and a call of
the model opens a region, so that what a dtype policy does not reach follows the lists as well: raw
ops, activations, sums. Variables stay float32 and are the masters; optimizers need nothing. These
keep their dtype policy: kept layers with all below them, normalizations, layers that preprocess, and
those that have a precision of their own. Buffers, variables that were made as non-trainable, are read
in float32.

In the 4 bytes of a variable are the low weight and what Kahan's compensation holds. With
``masters=None`` and ``"stochastic"`` the variables themselves are rounded, after each update of any
Keras optimizer (``updates``), in ``fit`` as well. So are moments that are to be low.

``get_config`` of a decorated layer tells its dtype policy from before, so copies, clones and saved
files are of the undecorated model: decorate what was loaded.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Sequence
from functools import wraps
from typing import Any

import keras
import tensorflow as tf

from ampbridge.adapters.backend import (
    Decoration,
    Layer,
    Magnitude,
    Model,
    Optimizer,
    is_normalization,
)
from ampbridge.adapters.interception import Interception
from ampbridge.adapters.low_storage import warn_if_nothing_is_low
from ampbridge.errors import UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast import casting
from ampbridge_tensorflow.autocast.keras_layers import NORMALIZATIONS
from ampbridge_tensorflow.autocast.regions import method_site, outside_of_regions, regions
from ampbridge_tensorflow.fit import loads, scaled_fit, updates
from ampbridge_tensorflow.model import fitted, model_calls
from ampbridge_tensorflow.model.fitted import Fitted
from ampbridge_tensorflow.model.model_layers import below, layers, own_variables
from ampbridge_tensorflow.native_values import copies, native_variable

__all__ = ["decorate", "decoration", "layers", "undecorate"]


@outside_of_regions
def decorate(model: Model, optimizer: Optimizer | None, decoration: Decoration) -> None:
    """See ``Backend.decorate``.

    Raises:
        ArgumentError: for low slots of an optimizer that has no moments.
        UnsupportedError: for a low ``save_dtype``; for kept layers that cannot be called; for parts
            of another model that is decorated at O2; for what has not been built, without float32
            masters or with low slots.
    """
    policy = decoration.policy
    _check_save_dtype(decoration.save_dtype)
    updates.check_moments(policy, optimizer)
    with casting.region(policy):  # which says what there is no region of
        found = Fitted(model, decoration, casting.rules_for(policy))
    for layer in decoration.kept:
        _check_that_it_is_called(layer)
    # A method may call what is below a kept layer.
    below_kept = {id(part.layer): part.layer for kept in decoration.kept for part in layers(kept)}
    found.kept = [x for x in below_kept.values() if model_calls.calls_of(type(x)) is not None]
    if decoration.standalone:
        float32_parts = below(found.kept)
        parts = [part.layer for part in layers(model) if part.layer is not model]
        found.parts = {id(x): weakref.ref(x) for x in parts if id(x) not in float32_parts}
    if policy.level == "O2":
        found.layers, found.variables = _low_parts(model, found.kept)
        # A low layer with which a kept one shares them would read them in low precision.
        found.full_variables = [
            variable
            for variable in _variables(found.kept)
            if _private.is_keras_variable(variable) and _private.is_autocast(variable)
        ]
        _check_free(found)
        if found.rounds:
            _check_built(found.layers, policy)
    others: list[Interception[Any]] = [regions, _configurations]
    if found.scales or policy.slots != "float32":
        others.append(scaled_fit.compiling)
    if found.scales or found.rounds:
        others.append(updates.updating)
    if found.rounds:
        others.append(loads.loading)
    found.release = model_calls.install(model, found, others)
    found.mark(model)
    if found.scales:
        scaled_fit.scale(model, found)
    low = fitted.low_variables(model)
    if found.low is not None:  # all is built
        warn_if_nothing_is_low(policy, low)
    found.weights_to_nearest()
    updates.serve(found, optimizer)


@outside_of_regions
def serve(model: Model, optimizer: Optimizer) -> None:
    """See ``Backend.serve``."""
    present = fitted.fitted(model)
    if present is not None:
        updates.check_moments(present.decoration.policy, optimizer)
        updates.serve(present, optimizer)


def served(model: Model) -> list[Optimizer]:
    """See ``Backend.served``."""
    present = fitted.fitted(model)
    return [] if present is None else list(present.optimizers)


@outside_of_regions
def undecorate(model: Model, optimizer: Optimizer | None) -> None:
    """See ``Backend.undecorate``."""
    found = fitted.fitted(model)
    if found is None:
        return
    scaled_fit.unscale(model, found)
    found.unmark(model, [part.layer for part in layers(model)])
    found.release()


def decoration(model: Model, optimizer: Optimizer | None) -> Decoration | None:
    """See ``Backend.decoration``. Any optimizer fits, unless slots are to be low."""
    found = fitted.fitted(model)
    if found is None:
        return None
    fits = optimizer is None or optimizer in found.optimizers
    return found.decoration if fits or found.decoration.policy.slots == "float32" else None


def copied(model: Model, optimizer: Optimizer, memo: dict[int, Any]) -> tuple[Model, Optimizer]:
    """See ``Backend.copied``; the model's copy is undecorated, as Keras makes it.

    Raises:
        UnsupportedError: for an optimizer of variables that the model does not hold.
    """
    twin = copy.deepcopy(model, memo)
    memo[id(model)] = twin
    other = type(optimizer).from_config(optimizer.get_config())
    memo[id(optimizer)] = other
    if optimizer.built:
        pairs = zip(model.trainable_variables, twin.trainable_variables, strict=True)
        twins = {id(variable): copy_of_it for variable, copy_of_it in pairs}
        trained = _private.optimizer_parameters(optimizer) or []
        if any(id(variable) not in twins for variable in trained):
            msg = (
                f"{type(optimizer).__name__} trains variables that the model does not hold.\n"
                "Hint: make both anew, and step.load(path) what step.save(path) has saved."
            )
            raise UnsupportedError(msg)
        other.build([twins[id(variable)] for variable in trained])
        for variable, present in zip(other.variables, optimizer.variables, strict=True):
            variable.assign(keras.ops.convert_to_tensor(present))
    return twin, other


# -- what becomes low


def _low_parts(model: Model, kept: Sequence[Any]) -> tuple[list[keras.Layer], list[tf.Variable]]:
    """The Keras layers that get a low dtype policy, and the variables that Keras does not cast."""
    float32_parts = below(kept)
    low = [
        part.layer
        for part in layers(model)
        if id(part.layer) not in float32_parts
        and not is_normalization(part, NORMALIZATIONS)
        and (not isinstance(part.layer, keras.Layer) or _is_castable(part.layer))
    ]
    kept_variables = {id(native_variable(v)) for v in _variables(kept)}
    variables: dict[int, tf.Variable] = {}
    for part in low:
        for variable in own_variables(part).values():
            native = native_variable(variable)
            by_keras = isinstance(part, keras.Layer) and _private.is_keras_variable(variable)
            is_parameter = native.trainable and native.dtype == tf.float32
            if is_parameter and not by_keras and id(native) not in kept_variables:
                variables[id(native)] = native
    return [part for part in low if isinstance(part, keras.Layer)], list(variables.values())


@outside_of_regions
def largest_magnitudes(model: Model, kept: Sequence[Any], dtype: str) -> list[Magnitude]:
    """See ``Backend.largest_magnitudes``. Layers that have not been built have no values yet."""
    low_layers, low_variables = _low_parts(model, kept)
    by_keras, others = set(map(id, low_layers)), set(map(id, low_variables))
    full = {id(v) for v in _variables(kept)}
    full |= {id(v) for layer in low_layers for v in _private.buffers(layer)}
    held: dict[int, tuple[Layer, str, tf.Variable]] = {}
    for part in layers(model):
        for name, variable in own_variables(part.layer).items():
            is_cast = id(part.layer) in by_keras and fitted.is_cast_by_keras(variable)
            native = native_variable(variable)
            if id(native) in others or (is_cast and id(variable) not in full):
                held.setdefault(id(variable), (part, name, native))
    if not held:
        return []
    with tf.init_scope():  # a step may be traced
        values = [tf.convert_to_tensor(copies(native)[0]) for _, _, native in held.values()]
        largest = [tf.reduce_max(tf.abs(each)) for each in values]
        rounded = [tf.cast(tf.cast(each, dtype), each.dtype) for each in values]
        changed = [tf.reduce_any(a != b) for a, b in zip(values, rounded, strict=True)]
        found = tf.stack([largest, tf.cast(tf.stack(changed), tf.float32)], axis=1).numpy().tolist()
    return [
        Magnitude(*each[:2], value, bool(is_rounded))
        for each, (value, is_rounded) in zip(held.values(), found, strict=True)
    ]


def _is_castable(layer: keras.Layer) -> bool:
    """Whether nobody but a decoration has chosen a precision for it."""
    if fitted.replaced(layer) is not None:
        return True
    return (
        layer.compute_dtype == layer.variable_dtype == "float32"
        and getattr(layer, "quantization_mode", None) is None
        and not _private.is_preprocessing(layer)
    )


def _variables(roots: Sequence[Any]) -> Iterator[Any]:
    for root in roots:
        for part in layers(root):
            yield from own_variables(part.layer).values()


# -- what is saved


def _replace_get_config(original: Any) -> Any:
    """``Layer.get_config``: the dtype policy is that from before the decoration."""

    @wraps(original)
    def get_config(self: keras.Layer) -> dict[str, Any]:
        config: dict[str, Any] = original(self)
        before = fitted.replaced(self)
        if before is not None:
            config["dtype"] = keras.dtype_policies.serialize(before.policy)
        return config

    return get_config


def _replace_get_compile_config(original: Any) -> Any:
    """``Model.get_compile_config``: the optimizer is the model's, wrapped if it is.

    Of one that has been wrapped to scale the loss Keras saves what is inside: it would wrap it again when
    it loads a model of ``mixed_float16``.
    """

    @wraps(original)
    def get_compile_config(self: keras.Model) -> dict[str, Any]:
        config: dict[str, Any] = original(self)
        if config and fitted.fitted(self) is not None:
            config["optimizer"] = keras.saving.serialize_keras_object(self.optimizer)
        return config

    return get_compile_config


_configurations: Interception[None] = Interception(
    "ampbridge_tensorflow configurations",
    lambda: [
        method_site(keras.Model, "get_config", _replace_get_config),
        method_site(keras.Model, "get_compile_config", _replace_get_compile_config),
    ],
)
"""What Keras saves of layers and models, as if nothing were decorated."""


# -- what is refused


def _check_save_dtype(save_dtype: str | None) -> None:
    if save_dtype not in (None, "float32"):
        msg = (
            f"save_dtype={save_dtype!r}: Keras and TensorFlow save the float32 variables.\n"
            "Hint: save_dtype=None; [w.astype('float16') for w in model.get_weights()] are low copies."
        )
        raise UnsupportedError(msg)


def _check_that_it_is_called(layer: Any) -> None:
    if model_calls.calls_of(type(layer)) is None:
        name = type(layer).__name__
        msg = (
            f"A {name} cannot be kept in float32: it has no __call__ to see it run by.\n"
            f"Hint: class {name}(tf.Module): def __call__(self, x): ..."
        )
        raise UnsupportedError(msg)


def _check_free(found: Fitted) -> None:
    """Refuse parts that are in low precision by another model's decoration."""
    taken = [layer for layer in found.layers if fitted.replaced(layer) is not None]
    taken += [v for v in found.variables if fitted.read_low_by(v) is not None]
    if taken:
        msg = (
            f"{getattr(taken[0], 'name', taken[0])!r} ({type(taken[0]).__name__}) is part of another "
            "model that is decorated at O2.\n"
            "Hint: amp.undecorate(other_model) before amp.decorate(model)."
        )
        raise UnsupportedError(msg)


def _check_built(low: Sequence[keras.Layer], policy: Policy) -> None:
    unbuilt = next((layer for layer in low if not layer.built), None)
    if unbuilt is not None:
        msg = (
            f"{policy!r}: low variables or their moments are rounded after each update, and "
            f"{unbuilt.name!r} ({type(unbuilt).__name__}) has not been built.\n"
            "Hint: model(x) or model.build(shape), then amp.decorate(model, optimizer, policy)."
        )
        raise UnsupportedError(msg)
