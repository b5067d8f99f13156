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
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ampbridge.adapters.interception import Site
from ampbridge.policies import op_table
from ampbridge.policies.op_table import Category
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast import simulation
from ampbridge_tensorflow.autocast.regions import active_rules, regions, replaces
from ampbridge_tensorflow.autocast.rules import (
    LOW,
    NEVER_CAST,
    PROMOTE_ONLY,
    Rules,
    cast_float,
    float_dtype,
    is_defined,
    map_floats,
)

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

# TensorFlow 1's names: there the ops alone follow the rules. Opening a region stays cheap.
OLD_NAMES = "tensorflow._api.v2.compat."

# One part of ``linear`` in the table; the op BiasAdd has a rule of its own.
PARTS = frozenset({"tf.nn.bias_add"})


def named_functions() -> dict[str, Any]:
    """The functions to run as one op, by their spelling in the table."""
    found = {
        spelling: _lookup(spelling, {"tf": tf, "keras": keras})
        for spelling, (owner, *_) in op_table.native_names("tensorflow_api").items()
        if _is_whole(spelling, owner) or not (_moves_values(owner) or _is_own_op(owner))
    }
    for spelling, (owner, *_) in op_table.native_names("keras_ops").items():
        if _is_whole(spelling, owner) or not _moves_values(owner):
            found[spelling] = _private.keras_implementation(spelling)
    return {s: f for s, f in found.items() if f is not None and s not in PARTS}


class Names(NamedTuple):
    """What a canonical op is here: TensorFlow's ops, functions with their namespace, Keras' layers."""

    ops: list[str]
    functions: list[tuple[str, str]]
    layers: list[type]


def names_of(op: op_table.Op) -> Names:
    """What ``op`` is here, as far as this TensorFlow and this Keras have it."""
    layers = [getattr(keras.layers, name, None) for name in op.names.get("keras_layers", ())]
    return Names(
        [n for n in op.names.get("tensorflow", ()) if is_defined(n) and n not in NEVER_CAST],
        [
            (namespace, name)
            for namespace in ("tensorflow_api", "keras_ops")
            for name in op.names.get(namespace, ())
            if name in _run_as_one_op()
        ],
        [layer for layer in layers if layer is not None],
    )


@functools.cache
def _run_as_one_op() -> frozenset[str]:
    return frozenset(named_functions())


def has_effect(op: op_table.Op) -> bool:
    """Whether there is something to cast that is ``op``."""
    return any(names_of(op))


def owner_family(op: str) -> str:
    """The family of canonical ``op``."""
    return op_table.ops()[op].family


def _is_whole(spelling: str, owner: str) -> bool:
    return spelling in NOT_REACHED_BY_OPS or owner_family(owner) in CHECKS_DTYPES


def _moves_values(owner: str) -> bool:
    return owner_family(owner) in MOVES_VALUES


def _is_own_op(canonical: str) -> bool:
    """Whether TensorFlow has an op that means ``canonical`` when nothing else is said."""
    raw = op_table.native_names("tensorflow")
    return any(
        raw[name][0] == canonical for name in op_table.ops()[canonical].names.get("tensorflow", ())
    )


def _lookup(spelling: str, roots: Mapping[str, Any]) -> Any:
    root, *path = spelling.split(".")
    return functools.reduce(lambda owner, name: getattr(owner, name, None), path, roots[root])


def run_as_one_op(
    rules: Rules,
    spelling: str,
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
) -> Any:
    """Call ``function`` with its inputs cast by its rule and nothing cast inside of it."""
    rule = rules.functions.get(spelling)
    if rule is None or (rule != "deny" and spelling in CASTS_BACK):
        return function(*args, **kwargs)
    owner = op_table.native_names(spelling_namespace(spelling))[spelling][0]
    if owner in LOOKED_INTO and rule != "deny":
        args, kwargs = _cast_by(rules, rule, args, kwargs)
        return function(*args, **kwargs)
    return run_whole(rules, rule, spelling, function, args, kwargs)


def run_whole(
    rules: Rules,
    rule: Category,
    spelling: str,
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
) -> Any:
    """Call ``function``, of the table or not, with its inputs cast and nothing cast inside of it."""
    args, kwargs = _cast_by(rules, rule, args, kwargs)
    try:
        return _run(rules, spelling, function, args, kwargs)
    except (TypeError, ValueError, UnboundLocalError):  # the last where TensorFlow forgot a dtype
        if rule == "deny" or not _some_are_low(args, kwargs):
            raise
    # It takes no low values, as an op that has no low kernel: it runs in float32.
    args, kwargs = _cast_by(rules, "deny", args, kwargs)
    return _run(rules, spelling, function, args, kwargs)


def _run(
    rules: Rules,
    spelling: str,
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
) -> Any:
    if rules.simulated:
        namespace = spelling_namespace(spelling)
        return simulation.run_function(rules, namespace, spelling, function, args, kwargs)
    with regions.paused(PROMOTE_ONLY):
        return function(*args, **kwargs)


def _some_are_low(args: Any, kwargs: Any) -> bool:
    return any(float_dtype(value) in LOW for value in tf.nest.flatten((args, kwargs)))


def _cast_by(rules: Rules, rule: Category, args: Any, kwargs: Any) -> tuple[Any, Any]:
    dtype = rules.dtype(rule)
    if dtype is None:
        return args, kwargs
    cast: tuple[Any, Any] = map_floats(lambda v: cast_float(v, dtype), (args, kwargs))
    return cast


def spelling_namespace(spelling: str) -> str:
    """The table's namespace of ``spelling``."""
    return "keras_ops" if spelling.startswith("keras.ops.") else "tensorflow_api"


def _replacement(spelling: str, original: Any) -> Any:
    @functools.wraps(original)
    def one_op(*args: Any, **kwargs: Any) -> Any:
        rules = active_rules()
        if rules is None:
            return original(*args, **kwargs)
        return run_as_one_op(rules, spelling, original, args, kwargs)

    return one_op


@functools.cache
def sites() -> FunctionSites:
    """Where the named functions stand in this process."""
    return FunctionSites()


class FunctionSites:
    """Where the named functions stand; modules imported since the last look are looked at too."""

    def __init__(self) -> None:
        named = named_functions()
        self._spellings = {id(function): spelling for spelling, function in named.items()}
        self._by_id = {
            id(function): (function, _replacement(spelling, function))
            for spelling, function in named.items()
        }
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
        """Those at which a region's replacement stands now, with the function's spelling."""
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
def replace_loss_call(original: Any) -> Any:
    """``LossFunctionWrapper.call``: a Keras Loss object casts its inputs to float32 itself."""

    @functools.wraps(original)
    def call(self: Any, y_true: Any, y_pred: Any) -> Any:
        rules = active_rules()
        spelling = loss_spelling(self)
        if rules is None or spelling is None:
            return original(self, y_true, y_pred)
        return run_as_one_op(rules, spelling, original, (self, y_true, y_pred), {})

    return call


def loss_spelling(loss: Any) -> str | None:
    """The spelling of the function that a Keras Loss object calls, if the table has it."""
    return _loss_spellings().get(id(inspect.unwrap(loss.fn)))


@functools.cache
def _loss_spellings() -> Mapping[int, str]:
    named = named_functions().items()
    # Unwrapped: either may have been looked up where a region or a watch has replaced it.
    return {id(inspect.unwrap(f)): s for s, f in named if s.startswith("keras.losses.")}
