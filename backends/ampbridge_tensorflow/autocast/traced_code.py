"""tf.function, control flow and gradients: code that TensorFlow builds from a user's functions.

A trace belongs to the rules it was made under. Loops keep the dtype they began with, branches end
in a common one, and gradients have rules of their own: their dtypes follow the forward pass.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from ampbridge.adapters.nested import map_leaves
from ampbridge.policies import function_ops
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.regions import (
    active_rules,
    in_regions,
    regions,
    replaces,
)
from ampbridge_tensorflow.autocast.rules import (
    FLOATS,
    Rules,
    cast_all,
    cast_float,
    float_dtype,
)
from ampbridge_tensorflow.model import fitted


@replaces(_private.FUNCTION_CONTEXT)
def _function_context(original: Any) -> Any:
    """tf.function keeps its traces by a key, which here includes the active rules and all decorations."""

    def make_function_context(scope_type: Any = None) -> Any:
        context = original(scope_type)
        key = (active_rules(), fitted.trace_key())
        return context if key == (None, None) else context._replace(context=(context.context, *key))

    return make_function_context


# -- control flow


def like(reference: Any, value: Any) -> Any:
    """``value`` in the float dtype of ``reference``."""
    wanted = float_dtype(reference)
    return cast_float(value, wanted) if wanted in FLOATS else value


@replaces(_private.WHILE_LOOP)
@in_regions
def _while_loop(
    rules: Rules, original: Any, cond: Any, body: Any, *args: Any, **kwargs: Any
) -> Any:
    """``while_loop``: the body's results are cast to the dtypes of its inputs."""

    def steady_body(*carried: Any) -> Any:
        returned = body(*carried)
        before, after = tf.nest.flatten(carried), tf.nest.flatten(returned)
        if len(before) != len(after):  # TensorFlow's own error says what is wrong
            return returned
        return tf.nest.pack_sequence_as(returned, list(map(like, before, after)))

    return original(cond, steady_body, *args, **kwargs)


def _ending_in_full(branch: Any) -> Any:
    """A function whose low results are float32; anything else as it is."""
    if not callable(branch):
        return branch
    return lambda: tf.nest.map_structure(lambda value: cast_float(value, tf.float32), branch())


@replaces(_private.COND, _private.INDEXED_CASE)
@in_regions
def _choose(rules: Rules, original: Any, *args: Any, **kwargs: Any) -> Any:
    """``cond_v2`` and ``indexed_case``: branches that disagree are traced again, to end in float32."""
    try:
        return original(*args, **kwargs)
    except TypeError:
        args, kwargs = map_leaves(_ending_in_full, (args, kwargs))
        return original(*args, **kwargs)


@replaces(_private.AUTOGRAPH_LOOP)
@in_regions
def _verify_loop_variable(rules: Rules, original: Any, *given: Any) -> Any:
    """AutoGraph checks a loop variable before it calls ``while_loop``."""
    *before, entry, exit_, shape = given
    return original(*before, entry, like(entry, exit_), shape)


@replaces(_private.AUTOGRAPH_COND)
@in_regions
def _verify_branches(rules: Rules, original: Any, name: str, body_var: Any, orelse_var: Any) -> Any:
    """AutoGraph checks what two branches set before it calls ``cond_v2``."""
    return original(name, body_var, like(body_var, orelse_var))


@replaces(*_private.TENSOR_ARRAY_STORES)
@in_regions
def _store(rules: Rules, original: Any, array: Any, *args: Any, **kwargs: Any) -> Any:
    """Methods that store values in a TensorArray: in its own dtype."""
    if array.dtype in FLOATS:
        args, kwargs = cast_all((args, kwargs), array.dtype)
    return original(array, *args, **kwargs)


# -- gradients


@replaces(_private.EAGER_GRADIENT, _private.GRAPH_GRADIENT)
def _gradient(original: Any) -> Any:
    """The two functions that build gradients; they follow the rules for gradients.

    Also outside of regions, where a decorated model has opened its own: in ``fit``, for instance.
    """

    @functools.wraps(original)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        rules = active_rules()
        with regions.paused(fitted.gradient_rules() if rules is None else rules.gradients):
            return original(*args, **kwargs)

    return gradient


@replaces(_private.CUSTOM_GRADIENT_EAGER, _private.CUSTOM_GRADIENT_GRAPH)
@in_regions
def _custom_gradient(rules: Rules, original: Any, f: Any, args: Any, kwargs: Any) -> Any:
    """``tf.custom_gradient``: gradients follow their rules, and get the dtypes of the inputs.

    ``tf.recompute_grad`` computes its forward pass once more in there, which must cast as the first
    one did; and that is often after the region has closed.
    """
    backward_rules = rules if _private.is_recomputed(f) else rules.gradients

    @functools.wraps(f)
    def with_cast_gradient(*inputs: Any, **keywords: Any) -> Any:
        output, gradient = f(*inputs, **keywords)

        def cast_gradient(*upstream: Any, variables: Any = None, **rest: Any) -> Any:
            with function_ops.standing(backward_rules.python), regions.region(backward_rules):
                if not variables:
                    return _like_inputs(inputs, gradient(*upstream, **rest))
                of_inputs, of_variables = gradient(*upstream, variables=variables, **rest)
                return _like_inputs(inputs, of_inputs), _like_inputs(variables, of_variables)

        return output, cast_gradient

    return original(with_cast_gradient, args, kwargs)


def _like_inputs(inputs: Any, gradients: Any) -> Any:
    references = tf.nest.flatten(inputs)
    if not isinstance(gradients, (list, tuple)):
        return like(references[0], gradients) if len(references) == 1 else gradients
    if len(references) != len(gradients):
        return gradients
    return [like(reference, g) for reference, g in zip(references, gradients, strict=True)]
