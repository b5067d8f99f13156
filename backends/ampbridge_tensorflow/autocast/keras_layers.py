"""Keras layers: let low-precision values pass, and follow the rules as a whole.

A float32 Keras layer casts its inputs up and its result back to float32; within a region neither may
happen. Layers are not changed: weights stay float32, and what is built inside of a region is built
as outside of it.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf

from ampbridge.policies import op_table
from ampbridge.policies.policy import Policy
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.functions import family_of
from ampbridge_tensorflow.autocast.regions import active_rules, in_regions, regions, replaces
from ampbridge_tensorflow.autocast.rules import (
    FLOATS,
    LOW,
    PROMOTE_ONLY,
    Rules,
    cast_all,
    float_dtype,
    float_dtypes,
    rules_of,
)
from ampbridge_tensorflow.model import fitted
from ampbridge_tensorflow.native_values import is_symbolic

FLOAT32 = Policy("O0")


@replaces(_private.LAYER_CALL)
@in_regions
def _layer_call(rules: Rules, original: Any, layer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``Operation.__call__``, after the layer has prepared its inputs.

    Denied: float32 inside and out. Allowed: inputs and variables low, the ops inside by their own
    rules (``Dense(activation="softmax")`` has a denied one). Else: left to those ops.
    """
    if not _follows_rules(layer) or is_symbolic((args, kwargs)):
        return _call_as_one_op(original, rules, layer, args, kwargs)
    if rules.low in LOW:
        args, kwargs = fitted.taken((args, kwargs), layer)
    rule = rules.layer(layer)
    if rule == "deny":
        args, kwargs = cast_all((args, kwargs), tf.float32)
        # A decorated layer makes low values of its own: variables, first states.
        decorated = fitted.is_ours(layer.dtype_policy)
        with regions.paused(rules_of(FLOAT32) if decorated else PROMOTE_ONLY):
            return original(layer, *args, **kwargs)
    arrived = float_dtypes((args, kwargs))
    if rule == "allow" and not isinstance(layer, ATTENTIONS):
        args, kwargs = cast_all((args, kwargs), rules.low)
        with _private.value(_private.LAYER_VARIABLES)(rules.low.name):
            outputs = _call_as_one_op(original, rules, layer, args, kwargs)
    else:
        outputs = _call_as_one_op(original, rules, layer, args, kwargs)
    if not isinstance(layer, NORMALIZATIONS):
        return outputs
    # Keras casts the results of a normalization to float32.
    if rule == "allow":
        return cast_all(outputs, rules.low)
    return cast_all(outputs, *arrived) if len(arrived) == 1 and arrived <= LOW else outputs


def _call_as_one_op(original: Any, rules: Rules, layer: Any, args: Any, kwargs: Any) -> Any:
    """Call ``layer``; where low precision is simulated, one that is one op is rounded once.

    That is a product with its bias, and a normalization of low inputs, whose result comes in
    float32 then.
    """
    inside = rules
    if rules.simulated:
        if isinstance(layer, PRODUCTS):
            inside = rules.in_layer
        elif isinstance(layer, NORMALIZATIONS) and float_dtypes((args, kwargs)) <= LOW:
            args, kwargs = cast_all((args, kwargs), tf.float32)
            inside = rules.inside
    if inside is rules:
        return original(layer, *args, **kwargs)
    with regions.paused(inside):
        return original(layer, *args, **kwargs)


def _follows_rules(operation: Any) -> bool:
    """Whether it is a layer for which nobody has chosen a precision."""
    return isinstance(operation, keras.Layer) and (
        operation.compute_dtype == "float32" or fitted.is_ours(operation.dtype_policy)
    )


def _layers_of(family: str) -> tuple[type, ...]:
    """The Keras layers that are an op of ``family``."""
    return tuple(
        getattr(keras.layers, name)
        for name, (owner, *_) in op_table.native_names("keras_layers").items()
        if family_of(owner) == family and hasattr(keras.layers, name)
    )


NORMALIZATIONS = _layers_of("norm")
PRODUCTS = (*_layers_of("matmul"), *_layers_of("conv"))
# Made of Dense layers and products that have rules of their own; unless denied as a whole, those hold.
ATTENTIONS = _layers_of("attention")


@replaces(_private.OUTPUT_SPEC)
def _without_rules(original: Any) -> Any:
    """Layers are built, and asked what they would return, as outside of any region.

    In a layer that is low, where values of both precisions meet, these are promoted.
    """

    @functools.wraps(original)
    def without_rules(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_low = isinstance(self, keras.Layer) and fitted.replaced(self) is not None
        inside = PROMOTE_ONLY if is_low else None
        if active_rules() is inside:
            return original(self, *args, **kwargs)
        with regions.paused(inside):
            return original(self, *args, **kwargs)

    return without_rules


@replaces(_private.LAYER_BUILD)
def _build(original: Any) -> Any:
    """``Layer._maybe_build``, which every call of a layer passes through."""
    build = _without_rules(original)

    @functools.wraps(original)
    def maybe_build(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.built:
            return original(self, *args, **kwargs)
        result = build(self, *args, **kwargs)
        fitted.note_built(self)
        return result

    return maybe_build


@replaces(_private.LAYER_INPUT)
@in_regions
def _convert_input(
    rules: Rules, original: Any, policy: Any, x: Any, autocast: bool, dtype: Any
) -> Any:
    """``DTypePolicy.convert_input``: a float32 layer takes low inputs as they are.

    So does a decorated one with float32 inputs: whether its op rounds them is up to the rules.
    """
    if fitted.is_ours(policy):
        dtype = "float32"
    full = keras.backend.standardize_dtype(dtype) == "float32"
    passes = full and tf.is_tensor(x) and float_dtype(x) in LOW
    return x if passes else original(policy, x, autocast, dtype)


@replaces(_private.MODEL_INPUT)
@in_regions
def _convert_inputs(rules: Rules, original: Any, model: Any, inputs: Any) -> Any:
    """``Functional._convert_inputs_to_tensors``: inputs keep the floating dtype in which they come."""
    return [
        given if tf.is_tensor(given) and {given.dtype, made.dtype} <= FLOATS else made
        for given, made in zip(inputs, original(model, inputs), strict=True)
    ]
