"""Every name of JAX, flax and Keras that is not part of their public interfaces, and what hangs on it.

To cast ops the adapter is a trace of JAX's own kind. To differentiate a loss that reads the user's own
modules it puts traced values into their Variables, which nnx lets no other code do across traces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import Any

import jax
from flax import nnx
from jax.extend import core as jex
from jax.extend.source_info_util import current_name_stack

from ampbridge.errors import UnsupportedError

CHECKED_VERSIONS = "jax 0.10.2 (flax 0.12.8), 0.11.2 (0.12.10), 0.12.0.1 (0.12.12); keras 3.15.1"

# Name -> the module that holds it, and what does not work without it.
TABLE: Mapping[str, tuple[str, str]] = {
    "Trace": ("jax._src.core", "no op can be cast"),
    "trace_ctx": ("jax._src.core", "no op can be cast"),
    "eval_trace": ("jax._src.core", "Keras' variables would belong to the trace that meets them"),
    "vjp": ("jax._src.api", "a loss can hold no derivative"),
    "_jvp": ("jax._src.api", "a loss can hold no derivative"),
    "linearize": ("jax._src.api", "a loss can hold no derivative"),
    "_scatter_update": ("jax._src.ops.scatter", "what `x.at[i].set` writes is rounded like x"),
}

# The same, of Keras.
TABLE_OF_KERAS: Mapping[str, tuple[str, str]] = {
    "get_stateless_scope": (
        "keras.src.backend.common.stateless_scope",
        "decorated models do not train in fit, nor in stateless_call",
    ),
    "to_snake_case": ("keras.src.utils.naming", "the names of weights change with the process"),
}

# What objects of theirs have, by a class.
ATTRIBUTES: Mapping[str, str] = {
    "_weakref": "a Variable could not be changed inside of a region",
    "_raw_value": "a loss could not be differentiated by the model's own Variables",
    "_var_metadata": "a change of a Variable's metadata would be overlooked",
    "_trace_state": "a loss could not change running statistics",
    "_pytree__state": "a loss could not change attributes of a module",
    "_pytree__nodes": "a module could not be compared with what it was",
}


def look_up(attribute: str) -> Any:
    """The object behind a name of the table.

    Raises:
        UnsupportedError: if this version lacks it.
    """
    module, without = {**TABLE, **TABLE_OF_KERAS}[attribute]
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise _lacking(f"{module}.{attribute}", without) from error


def _lacking(what: str, without: str) -> UnsupportedError:
    return UnsupportedError(
        f"This version of JAX has no {what}; without it {without}.\n"
        f"Hint: pip install 'jax==0.10.2' 'flax==0.12.8'  # checked: {CHECKED_VERSIONS}"
    )


STATE, NODES = "_pytree__state", "_pytree__nodes"
"""Attributes of a module that are nnx's: whose it is, and which of the others are data."""

Trace: Any = look_up("Trace")
set_current_trace: Any = jex.set_current_trace
_trace_ctx: Any = look_up("trace_ctx")


def present_trace() -> Any:
    """The trace that the next op goes to."""
    return _trace_ctx.trace


def outside_of_traces() -> AbstractContextManager[Any]:
    """A block whose ops run at once, and to whose level belongs what is made in it."""
    block: AbstractContextManager[Any] = set_current_trace(look_up("eval_trace"))
    return block


def differentiating() -> Iterator[tuple[Any, str, Any]]:
    """The functions by which JAX differentiates, and all that is built on them: holder, name, function."""
    for name in ("vjp", "_jvp", "linearize"):
        function = look_up(name)
        for holder in (jax, import_module(TABLE[name][0])):
            if vars(holder).get(name) is function:
                yield holder, name, function


def updating() -> tuple[Any, str, Any]:
    """The function that writes into a part of an array, for all of ``x.at[i]``: holder, name, function."""
    name = "_scatter_update"
    return import_module(TABLE[name][0]), name, look_up(name)


def scopes() -> list[str]:
    """The names of the scopes around the op that is evaluated now, outer ones first."""
    return [getattr(scope, "name", "") for scope in current_name_stack().stack]


def as_if_it_were(trace: Any, parent: Any) -> None:
    """Have nnx take ``trace`` for ``parent``: what belongs to the parent may be changed in it."""
    trace._weakref, trace.requires_low = parent._weakref, parent.requires_low


def value_of(variable: nnx.Variable[Any]) -> Any:
    """The array in a Variable, without nnx's hooks."""
    return variable._raw_value


def is_traced(variable: nnx.Variable[Any]) -> bool:
    """Whether the array in a Variable is one of a trace."""
    return isinstance(value_of(variable), jax.core.Tracer)


def fill(variable: Any, value: Any) -> None:
    """Put an array into a Variable, whichever trace it belongs to."""
    object.__setattr__(variable, "_raw_value", value)


_slots: Mapping[str, Any] = vars(nnx.Variable)
_value = attrgetter("_raw_value")
_fills: list[Callable[[Any, Any], None]] = [_slots["_raw_value"].__set__]

metadata_of: Callable[[Any], dict[str, Any]] = _slots["_var_metadata"].__get__
"""A Variable's own metadata."""


def values_of(variables: Sequence[Any]) -> list[Any]:
    """``value_of`` each, in less time."""
    return [*map(_value, variables)]


def fill_all(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """``fill`` each, in less time."""
    deque(map(_fills[-1], variables, values), maxlen=0)


def fill_each_its_way() -> None:
    """Have ``fill_all`` find Variables that hold their arrays elsewhere. It takes longer then."""
    _fills[1:] = [fill]


def level_of(node: Any) -> Any:
    """The trace to which a Variable or a module belongs."""
    owner = node if isinstance(node, nnx.Variable) else node._pytree__state
    return owner._trace_state


def is_present(level: Any) -> bool:
    """Whether what belongs to ``level`` may be changed now."""
    return bool(level.is_valid())


def move(node: Any, level: Any) -> None:
    """Have a Variable or a module belong to another trace."""
    owner = node if isinstance(node, nnx.Variable) else node._pytree__state
    object.__setattr__(owner, "_trace_state", level)


def present_level() -> Any:
    """The level of what is made now."""
    return nnx.Variable(0)._trace_state


def inputs_of_a_loop(scan: Mapping[str, Any]) -> tuple[int, int]:
    """How many of a scan's inputs are the same on each turn, and how many it carries, by its parameters.

    Raises:
        UnsupportedError: if this version has others.
    """
    if "ft_in" in scan:  # jax 0.11
        constants, carried, _ = scan["ft_in"].unpack()
        return len(constants), len(carried)
    try:
        return scan["num_consts"], scan["num_carry"]
    except KeyError as error:
        raise _lacking(f"{error.args[0]} of a scan", "no loop can be cast") from error


def used_inputs(pull: Any, count: int) -> list[bool]:
    """On which of the last ``count`` inputs the linear function that ``jax.vjp`` returned depends."""
    jaxpr = pull.jaxpr
    needed = {v for v in jaxpr.outvars if not hasattr(v, "val")}
    for eqn in reversed(jaxpr.eqns):
        if needed.intersection(eqn.outvars):
            needed.update(v for v in eqn.invars if not hasattr(v, "val"))
    return [v in needed for v in jaxpr.invars[len(jaxpr.invars) - count :]]


# -- Keras

_RECORDS = """_layers _functional _operations _operations_by_depth _nodes _nodes_by_depth _inbound_nodes
_outbound_nodes _tracker _metrics _variables _trainable_variables _non_trainable_variables
_trainable_variables_indices _seed_generators _losses _loss_ids _losses_override
_call_context_args _call_has_context_arg _called _jax_state_synced train_function test_function
predict_function"""
KERAS_RECORDS = frozenset(_RECORDS.split())
"""Attributes of layers and optimizers in which Keras keeps records of its own."""

KERAS_SETTINGS = ("_trainable", "_dtype_policy", "_learning_rate", "_compile_loss")
"""Attributes of what a user may set, by properties and by ``compile``."""


def value_in_keras(variable: Any) -> Any:
    """The array of a Keras variable; in a ``keras.StatelessScope`` that of the scope."""
    scope = _stateless_scope()()
    found = None if scope is None else scope.get_current_value(variable)
    return variable._value if found is None else found


def fill_in_keras(variable: Any, value: Any) -> None:
    """Put an array where ``value_in_keras`` finds it, of whichever dtype."""
    scope = _stateless_scope()()
    if scope is None:
        variable._value = value
    else:
        scope.add_update((variable, value))


@cache
def _stateless_scope() -> Any:
    return look_up("get_stateless_scope")


def snake_case(name: str) -> str:
    """What Keras names an instance of a class by that name."""
    return str(look_up("to_snake_case")(name))


def sublayers(layer: Any) -> list[Any]:
    """The layers directly below a Keras layer."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def buffers(layer: Any) -> list[Any]:
    """The variables that a Keras layer, or one below it, has made as non-trainable."""
    below = layer._flatten_layers()
    return [variable for each in below for variable in each._non_trainable_variables]


def clear_losses(layer: Any) -> None:
    """Drop what a call of a Keras layer has added to its losses."""
    layer._clear_losses()


def built_for(optimizer: Any) -> list[Any]:
    """The variables that a Keras optimizer was built for."""
    return list(optimizer._trainable_variables)


def slot_lists(optimizer: Any) -> dict[str, Sequence[Any]]:
    """The lists of a Keras optimizer that have a slot for each of its parameters, or None, by attribute."""
    count = len(optimizer._trainable_variables)
    return {
        attribute: value
        for attribute, value in vars(optimizer).items()
        if isinstance(value, (list, tuple))
        and len(value) == count
        and attribute not in KERAS_RECORDS
    }
