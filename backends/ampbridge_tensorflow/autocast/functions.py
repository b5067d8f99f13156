"""Functions that are one op of the table and several of TensorFlow's.

``tf.nn.gelu``, ``keras.ops.layer_normalization`` or ``keras.losses.mean_squared_error`` have no op
of their own. They are run as one: inputs cast by the function's rule, and nothing inside cast again.
So are all functions of ``keras.ops`` that compute, because Keras casts results by rules of its own.

They are found by their names in the op table and replaced under every name that a module holds
them by, so that ``from tensorflow.math import l2_normalize`` is reached too.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ampbridge.adapters.interception import Site
from ampbridge.policies import op_table
from ampbridge.policies.op_table import Category
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.regions import Replace, in_regions, regions, replaces
from ampbridge_tensorflow.autocast.rules import (
    LOW,
    NEVER_CAST,
    Rules,
    cast_all,
    float_dtypes,
    in_float32,
    is_defined,
    map_floats,
    rounded,
)
from ampbridge_tensorflow.autocast.simulation import is_product

# They move values: the rules of TensorFlow's own ops say all there is to say.
MOVES_VALUES = frozenset({"shape", "index", "comparison", "random"})

# Their functions compare dtypes in Python before the ops are reached.
CHECKS_DTYPES = frozenset({"fft"})

# Their ops have the rule; but what comes out is cast back to what came in.
CASTS_BACK = frozenset(
    {
        "tf.nn.softmax_cross_entropy_with_logits",
        "tf.nn.sparse_softmax_cross_entropy_with_logits",
    }
)

# Functions that the rules of the ops inside do not reach: they compare dtypes in Python, are made of
# ops that have other names, or skip their own.
NOT_REACHED_BY_OPS = frozenset(
    {
        *CASTS_BACK,
        *("tf.linalg.eig", "tf.linalg.eigvals", "tf.nn.dropout", "tf.boolean_mask", "tf.stack"),
        *("keras.ops.take_along_axis", "keras.ops.scatter", "keras.ops.scatter_update"),
        *("keras.ops.stack", "keras.ops.diag"),
    }
)

# Made of ops that have rules of their own; unless denied as a whole, those hold.
LOOKED_INTO = frozenset(
    {"separable_conv2d", "scaled_dot_product_attention", "multi_head_attention"}
)

# It becomes BiasAdd, which finds out what it is given.
LEFT_TO_ITS_OP = frozenset({"keras.ops.add"})

# TensorFlow 1's names: there the ops alone follow the rules. Opening a region stays cheap.
OLD_NAMES = "tensorflow._api.v2.compat."

# One part of ``linear`` in the table; the op BiasAdd has a rule of its own.
PARTS = frozenset({"tf.nn.bias_add"})


# -- which functions are one op


@functools.cache
def named_functions() -> Mapping[str, Any]:
    """The functions to run as one op, by their spelling in the table."""
    found = {}
    for namespace in ("tensorflow_api", "keras_ops"):
        for spelling, (owner, *_) in op_table.native_names(namespace).items():
            of_keras, family = namespace == "keras_ops", family_of(owner)
            follows_ops = family in MOVES_VALUES or (not of_keras and _is_own_op(owner))
            whole = spelling in NOT_REACHED_BY_OPS or family in CHECKS_DTYPES
            function = _lookup(spelling)
            if function is not None and spelling not in PARTS and (whole or not follows_ops):
                found[spelling] = _private.keras_implementation(function) if of_keras else function
    return {spelling: function for spelling, function in found.items() if function is not None}


class Names(NamedTuple):
    """TensorFlow's ops, functions and Keras' layers that are one canonical op."""

    ops: list[str]
    functions: list[str]
    layers: list[type]


def names_of(op: op_table.Op) -> Names:
    """The names of ``op`` that this TensorFlow and this Keras have."""
    spellings = (*op.names.get("tensorflow_api", ()), *op.names.get("keras_ops", ()))
    layers = [getattr(keras.layers, name, None) for name in op.names.get("keras_layers", ())]
    return Names(
        [n for n in op.names.get("tensorflow", ()) if is_defined(n) and n not in NEVER_CAST],
        [spelling for spelling in spellings if spelling in named_functions()],
        [layer for layer in layers if layer is not None],
    )


def has_effect(op: op_table.Op) -> bool:
    """Whether there is anything to cast for ``op``."""
    return any(names_of(op))


def family_of(op: str) -> str:
    """The family of an op, "own" if the table does not have it."""
    return op_table.op(op).family


def spelling_namespace(spelling: str) -> str:
    """The table's namespace of a function's ``spelling``."""
    return "keras_ops" if spelling.startswith("keras.ops.") else "tensorflow_api"


def owner_of(spelling: str) -> str:
    """The canonical op that a function means when nothing else is said."""
    return op_table.native_names(spelling_namespace(spelling))[spelling][0]


def _is_own_op(canonical: str) -> bool:
    """Whether TensorFlow has an op that means ``canonical`` when nothing else is said."""
    raw = op_table.native_names("tensorflow")
    names = op_table.ops()[canonical].names.get("tensorflow", ())
    return any(raw[name][0] == canonical for name in names)


def _lookup(spelling: str) -> Any:
    root, *path = spelling.split(".")
    found = tf if root == "tf" else keras
    for name in path:
        found = getattr(found, name, None)
    return found


# -- how they run


def run_as_one_op(rules: Rules, spelling: str, function: Any, args: Any, kwargs: Any) -> Any:
    """Call ``function`` of the table with its inputs cast by its rule and nothing cast inside of it."""
    rule = rules.functions.get(spelling)
    if rule is None or (rule != "deny" and spelling in CASTS_BACK):
        return function(*args, **kwargs)
    if rule != "deny" and owner_of(spelling) in LOOKED_INTO:
        args, kwargs = _cast_by(rules, rule, args, kwargs)
        return function(*args, **kwargs)
    return run_whole(rules, rule, spelling, function, args, kwargs)


def run_whole(
    rules: Rules, rule: Category, spelling: str, function: Any, args: Any, kwargs: Any
) -> Any:
    """Call ``function``, of the table or not, with its inputs cast and nothing cast inside of it."""
    args, kwargs = _cast_by(rules, rule, args, kwargs)
    try:
        return _run(rules, spelling, function, args, kwargs)
    except (TypeError, ValueError, UnboundLocalError):  # the last where TensorFlow forgot a dtype
        if rule == "deny" or LOW.isdisjoint(float_dtypes((args, kwargs))):
            raise
    # It takes no low values, as an op that has no low kernel: it runs in float32.
    args, kwargs = _cast_by(rules, "deny", args, kwargs)
    return _run(rules, spelling, function, args, kwargs)


def _run(rules: Rules, spelling: str, function: Any, args: Any, kwargs: Any) -> Any:
    """Call ``function``, whose inputs have been cast. Simulated, its result is rounded once if all are low.

    Inputs of mixed dtypes are settled inside, op by op.
    """
    low = None
    if rules.simulated and spelling not in LEFT_TO_ITS_OP:
        dtypes = float_dtypes((args, kwargs))
        low = dtypes.pop() if len(dtypes) == 1 and dtypes <= LOW else None
    if low is None:
        with regions.paused(rules.inside):
            return function(*args, **kwargs)
    args, kwargs = map_floats(lambda v: in_float32(v, low), (args, kwargs))
    with regions.paused(rules.inside):
        results = function(*args, **kwargs)
    of_product = is_product(spelling_namespace(spelling), spelling)
    return map_floats(lambda v: rounded(v, low, of_product), results)


def _cast_by(rules: Rules, rule: Category, args: Any, kwargs: Any) -> tuple[Any, Any]:
    dtype = rules.dtype(rule)
    return (args, kwargs) if dtype is None else cast_all((args, kwargs), dtype)


# -- where they stand


def _as_one_op(spelling: str) -> Replace:
    @in_regions
    def one_op(rules: Rules, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        return run_as_one_op(rules, spelling, original, args, kwargs)

    return one_op


@functools.cache
def sites() -> FunctionSites:
    """The places in this process that hold the named functions."""
    return FunctionSites()


class FunctionSites:
    """Finds the places that hold the named functions, also in modules that were imported since."""

    def __init__(self) -> None:
        named = named_functions().items()
        self._spellings = {id(function): spelling for spelling, function in named}
        self._by_id = {id(f): (f, _as_one_op(spelling)(f)) for spelling, f in named}
        self._seen: set[str] = set()
        self._imported = 0
        self._sites: list[Site] = []

    def find(self) -> list[Site]:
        """One site for each name in each imported module that still holds the function."""
        if len(sys.modules) != self._imported:
            self._imported = len(sys.modules)
            for name in set(sys.modules) - self._seen:
                self._seen.add(name)
                module = sys.modules.get(name)
                if isinstance(module, ModuleType) and not name.startswith(OLD_NAMES):
                    self._sites += self._sites_in(module)
        return [s for s in self._sites if vars(s.owner).get(s.attribute) is s.original]

    def standing(self) -> list[tuple[str, Site]]:
        """The sites at which a region's replacement stands now, with the function's spelling."""
        return [
            (self._spellings[id(s.original)], s)
            for s in self._sites
            if vars(s.owner).get(s.attribute) is s.replacement
        ]

    def _sites_in(self, module: ModuleType) -> list[Site]:
        return [
            Site(module, attribute, *self._by_id[id(value)])
            for attribute, value in list(vars(module).items())
            if id(value) in self._by_id
        ]


@replaces(_private.LOSS_CLASS)
@in_regions
def _loss_call(rules: Rules, original: Any, loss: Any, y_true: Any, y_pred: Any) -> Any:
    """``LossFunctionWrapper.call``: a Keras Loss object casts its inputs to float32 itself."""
    spelling = loss_spelling(loss)
    if spelling is None:
        return original(loss, y_true, y_pred)
    return run_as_one_op(rules, spelling, original, (loss, y_true, y_pred), {})


def loss_spelling(loss: Any) -> str | None:
    """The spelling of the function that a Keras Loss object calls, if the table has it."""
    return _loss_spellings().get(id(inspect.unwrap(loss.fn)))


@functools.cache
def _loss_spellings() -> Mapping[int, str]:
    named = named_functions().items()
    # Unwrapped: either may have been looked up where a region or a watch has replaced it.
    return {id(inspect.unwrap(f)): s for s, f in named if s.startswith("keras.losses.")}
