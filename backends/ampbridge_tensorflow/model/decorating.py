"""Fitting a model to a policy, in place, and taking it back.

At O2 the layers of Keras get Keras' own mixed dtype policies, as in TensorFlow's guide, and a call of
the model opens a region, so that what a dtype policy does not reach follows the lists as well: raw
ops, activations, sums. Variables stay float32 and are the masters; optimizers need nothing. These
keep their dtype policy: kept layers with all below them, normalizations, layers that preprocess, and
those that have a precision of their own. Buffers, variables that were made as non-trainable, are read
in float32.

Without masters the variables themselves are rounded: after each update, by a constraint, which every
Keras optimizer applies, in ``fit`` as well.

``get_config`` of a decorated layer tells its dtype policy from before, so copies, clones and saved
files are of the undecorated model: decorate what was loaded.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from functools import cache, wraps
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
from ampbridge.adapters.interception import Interception, Site
from ampbridge.errors import UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast import casting
from ampbridge_tensorflow.autocast.keras_layers import NORMALIZATIONS
from ampbridge_tensorflow.autocast.regions import outside_of_regions, regions
from ampbridge_tensorflow.autocast.rules import Rules
from ampbridge_tensorflow.fit import scaled_fit, unscaled_updates
from ampbridge_tensorflow.model import fitted, model_calls
from ampbridge_tensorflow.model.fitted import Fitted
from ampbridge_tensorflow.model.model_layers import below, layers, own_variables
from ampbridge_tensorflow.native_values import copies, native_variable

__all__ = ["decorate", "decoration", "layers", "undecorate"]


@outside_of_regions
def decorate(model: Model, optimizer: Optimizer | None, decoration: Decoration) -> None:
    """See ``Backend.decorate``.

    Raises:
        UnsupportedError: for a low ``save_dtype``; for kept layers that cannot be called; for parts
            of another model that is decorated at O2; for ``master_weights=False`` on what has not
            been built.
    """
    policy = decoration.policy
    _check_save_dtype(decoration)
    found = Fitted(model, decoration, _checked_rules(policy))
    found.kept = _called_layers([_callable(layer) for layer in decoration.kept])
    if decoration.standalone:
        found.parts = _parts(model, found.kept)
    if policy.level == "O2":
        found.layers, found.variables = _low_parts(model, found.kept)
        found.full_variables = list(_autocast_variables(found.kept))
        _check_free(found)
        if not policy.master_weights:
            _check_built(found.layers, policy)
    others: list[Interception[Any]] = [regions, _configurations()]
    if found.scales:
        others += [scaled_fit.compiling(), unscaled_updates.updates()]
    found.release = model_calls.install(model, found, others)
    found.mark(model)
    if found.scales:
        scaled_fit.scale(model, found)
    if policy.level == "O2" and not policy.master_weights:
        _round(fitted.low_variables(model), policy.dtype)


@outside_of_regions
def undecorate(model: Model, optimizer: Optimizer | None) -> None:
    """See ``Backend.undecorate``."""
    found = fitted.fitted(model)
    if found is None:
        return
    for variable in fitted.low_variables(model):
        if isinstance(variable.constraint, Rounded):
            _set_constraint(variable, variable.constraint.before)
    scaled_fit.unscale(model, found)
    found.unmark(model, [part.layer for part in layers(model)])
    found.release()


def decoration(model: Model, optimizer: Optimizer | None) -> Decoration | None:
    """See ``Backend.decoration``. Any optimizer will do: the variables are the masters."""
    found = fitted.fitted(model)
    return None if found is None else found.decoration


# -- what becomes low


def _called_layers(kept: Sequence[Any]) -> list[Any]:
    """Kept layers and all below them, which a method may call."""
    parts = {id(part.layer): part.layer for layer in kept for part in layers(layer)}
    return [part for part in parts.values() if model_calls.calls_of(type(part)) is not None]


def _parts(model: Any, kept: Sequence[Any]) -> dict[int, weakref.ref[Any]]:
    """All layers below the model but for those that are kept, with all below them."""
    float32_parts = below(kept)
    parts = [part.layer for part in layers(model) if part.layer is not model]
    return {id(part): weakref.ref(part) for part in parts if id(part) not in float32_parts}


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
    variables = {
        id(native): native
        for part in low
        for variable in own_variables(part).values()
        if (native := _uncast(part, variable)) is not None and id(native) not in kept_variables
    }
    return [part for part in low if isinstance(part, keras.Layer)], list(variables.values())


@outside_of_regions
def largest_magnitudes(model: Model, kept: Sequence[Any]) -> list[Magnitude]:
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
        each_largest = [tf.reduce_max(tf.abs(copies(native)[0])) for _, _, native in held.values()]
        largest = tf.stack(each_largest).numpy().tolist()
    return [Magnitude(*each[:2], value) for each, value in zip(held.values(), largest, strict=True)]


def _is_castable(layer: keras.Layer) -> bool:
    """Whether it computes in float32 because nobody has said otherwise, or does but for a decoration."""
    if fitted.replaced(layer) is not None:
        return True
    return (
        layer.compute_dtype == layer.variable_dtype == "float32"
        and getattr(layer, "quantization_mode", None) is None
        and not _private.is_preprocessing(layer)
    )


def _uncast(part: Any, variable: Any) -> tf.Variable | None:
    """The float32 parameter that no dtype policy would cast; None for others."""
    by_keras = isinstance(part, keras.Layer) and _private.is_keras_variable(variable)
    native = native_variable(variable)
    is_read_low = native.trainable and native.dtype == tf.float32 and not by_keras
    return native if is_read_low else None


def _variables(roots: Sequence[Any]) -> Iterator[Any]:
    for root in roots:
        for part in layers(root):
            yield from own_variables(part.layer).values()


def _autocast_variables(kept: Sequence[Any]) -> Iterator[keras.Variable]:
    """Those that a low layer, with which they are shared, would read in low precision."""
    for variable in _variables(kept):
        if _private.is_keras_variable(variable) and _private.is_autocast(variable):
            yield variable


# -- without masters


class Rounded(keras.constraints.Constraint):
    """Keeps a variable at values of ``dtype``, after the constraint that it had before."""

    def __init__(self, dtype: str, before: Any) -> None:
        self.dtype, self.before = dtype, before

    def __call__(self, variable: Any) -> tf.Tensor:
        return _in_precision(variable if self.before is None else self.before(variable), self.dtype)


def _round(variables: Sequence[Any], dtype: str) -> None:
    for variable in variables:
        variable.assign(_in_precision(variable, dtype))
        _set_constraint(variable, Rounded(dtype, variable.constraint))


def _set_constraint(variable: Any, constraint: Any) -> None:
    each = (variable,) if _private.is_keras_variable(variable) else copies(variable)
    for one in each:
        _private.set_constraint(one, constraint)


def _in_precision(value: Any, dtype: str) -> tf.Tensor:
    """``value`` rounded to ``dtype``, in its own."""
    value = tf.convert_to_tensor(value)
    return tf.cast(tf.cast(value, dtype), value.dtype)


# -- what is saved


@cache
def _configurations() -> Interception[None]:
    """What Keras saves of layers and models, as if nothing were decorated."""

    def find_sites() -> Sequence[Site]:
        replace = {
            "get_config": _replace_get_config,
            "get_compile_config": _replace_get_compile_config,
        }
        sites = []
        for name, replacement in replace.items():
            owner = next(base for base in keras.Model.__mro__ if name in vars(base))
            original = vars(owner)[name]
            sites.append(Site(owner, name, original, replacement(original)))
        return sites

    return Interception("ampbridge_tensorflow configurations", find_sites)


def _replace_get_config(original: Any) -> Any:
    """``Layer.get_config``: the dtype policy is that from before."""

    @wraps(original)
    def get_config(self: keras.Layer) -> dict[str, Any]:
        config: dict[str, Any] = original(self)
        before = fitted.replaced(self)
        if before is not None:
            config["dtype"] = keras.dtype_policies.serialize(before.policy)
        return config

    return get_config


def _replace_get_compile_config(original: Any) -> Any:
    """``Model.get_compile_config``: the optimizer is the one there is.

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


# -- what is refused


def _checked_rules(policy: Policy) -> Rules:
    with casting.region(policy):  # says what a region of it cannot be
        return casting.rules_for(policy)


def _check_save_dtype(decoration: Decoration) -> None:
    if decoration.save_dtype not in (None, "float32"):
        msg = (
            f"save_dtype={decoration.save_dtype!r}: Keras and TensorFlow save the float32 variables.\n"
            "Hint: save_dtype=None; [w.astype('float16') for w in model.get_weights()] are low copies."
        )
        raise UnsupportedError(msg)


def _callable(layer: Any) -> Any:
    if model_calls.calls_of(type(layer)) is not None:
        return layer
    msg = (
        f"A {type(layer).__name__} cannot be kept in float32: it has no __call__ to see it run by.\n"
        f"Hint: class {type(layer).__name__}(tf.Module): def __call__(self, x): ..."
    )
    raise UnsupportedError(msg)


def _check_free(found: Fitted) -> None:
    """That no part is in low precision by another model's decoration."""
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
            f"{policy!r}: without master weights the variables themselves are rounded, and "
            f"{unbuilt.name!r} ({type(unbuilt).__name__}) has not been built.\n"
            "Hint: model(x) or model.build(shape), then amp.decorate(model, policy=policy)."
        )
        raise UnsupportedError(msg)
