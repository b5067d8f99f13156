"""Functions and layers that are one op, and what stands for them while a region is open.

``softmax``, ``logsumexp``, ``gelu`` and optax's cross entropies have no name in a trace, only their parts
have. A layer of flax is one op, as a linear layer is elsewhere: its bias is added in the precision of the
product. Decompositions of matrices and Fourier transforms are one as well, in float32. What differentiates a
function, and what writes into a part of an array, has a stand-in because a trace sees too little of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import optax
from flax import nnx

from ampbridge.adapters.interception import Interception, Site
from ampbridge.adapters.interrupts import LAST_OF_SEVERAL
from ampbridge.adapters.nested import leaves, map_leaves
from ampbridge.policies import function_ops
from ampbridge_jax._private import (
    differentiating,
    present_trace,
    set_current_trace,
    updating,
    values_of,
)
from ampbridge_jax.autocast import control_flow, higher_order
from ampbridge_jax.autocast.rules import (
    ALL_FLOAT32,
    ATTENTION,
    FLOAT32,
    FOLLOW,
    FUNCTIONS,
    LAYERS,
    UNTOUCHED,
    WITHIN,
    Rules,
    float32_functions,
    is_castable,
    to,
)
from ampbridge_jax.autocast.trace import HIGHER, RegionTrace, in_region, watch
from ampbridge_jax.model.kinds import own_parameters
from ampbridge_jax.model.variables import holding

_HOLDERS = (jax.nn, jax.scipy.special, nnx, optax, optax.losses)
_IN_FLOAT32 = (jax.numpy.linalg, jax.scipy.linalg, jax.lax.linalg, jax.numpy.fft)

HIGHER.update(higher_order.RUNS)


@cache
def _sites() -> tuple[Site, ...]:
    found = list(control_flow.sites(casts_here))
    found += [Site(owner, name, f, _differentiating(f)) for owner, name, f in differentiating()]
    found.append(Site(*updating(), _updating(updating()[-1])))
    for name, op in FUNCTIONS.items():
        original = next(vars(each)[name] for each in _HOLDERS if name in vars(each))
        entry = _function(original, op)
        holders = [each for each in _HOLDERS if vars(each).get(name) is original]
        found += [Site(each, name, original, entry) for each in holders]
    for module, name in product(_IN_FLOAT32, float32_functions()):
        if original := vars(module).get(name):
            entry = _in_float32(original, float32_functions()[name])
            found.append(Site(module, name, original, entry))
    for layer, op in LAYERS.items():
        original = vars(layer)["__call__"]
        found.append(Site(layer, "__call__", original, _layer(original, op)))
    return tuple(found)


regions: Interception[Rules] = Interception("ampbridge_jax rules", _sites)


def active_rules() -> Rules | None:
    """The rules of the innermost region; None outside of any."""
    return regions.active.get()


def casts_here() -> bool:
    """Whether a region that casts is open."""
    return active_rules() not in (None, UNTOUCHED, ALL_FLOAT32)


@contextmanager
def under_rules(rules: Rules) -> Iterator[None]:
    """A block whose ops follow ``rules``, in place of those around it."""
    outer, present = active_rules(), present_trace()
    if rules is ALL_FLOAT32 and outer is None:
        yield  # there is nothing to take back
        return
    if type(present) is RegionTrace:
        trace = RegionTrace(present.parent, rules, mark=present.mark)
    else:  # in a body that is traced, the region around it will see the ops
        trace = RegionTrace(present, rules, mark=outer is not None)
    inside = set_current_trace(trace)
    with regions.paused(rules), in_region(rules.number), inside, LAST_OF_SEVERAL:
        yield


def _differentiating(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that differentiates another: it sees the casts inside, whose derivatives are casts.

    Otherwise tangents would have the dtypes that values have without a region.
    """

    @wraps(original)
    def entry(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        rules = active_rules()
        if rules is None or rules is UNTOUCHED:
            return original(function, *args, **kwargs)

        @wraps(function, updated=())
        def run(*args: Any, **kwargs: Any) -> Any:
            with under_rules(rules):
                return function(*args, **kwargs)

        return original(run, *args, **kwargs)

    return entry


def _updating(original: Callable[..., Any]) -> Callable[..., Any]:
    """What writes into a part of an array: into the widest dtype of both, as other ops follow."""

    @wraps(original)
    def entry(x: Any, index: Any, y: Any, *args: Any, **kwargs: Any) -> Any:
        if casts_here() and is_castable(x) and is_castable(y):
            x = to(x, jnp.result_type(x, y))
        return original(x, index, y, *args, **kwargs)

    return entry


def _is_seen_again() -> bool:
    """Whether the region sees later what is traced here: values may then arrive in another dtype."""
    return type(present_trace()) is not RegionTrace


def within_rules(dtype: Any) -> Rules:
    """The rules inside of what is one op and computes in ``dtype``."""
    return WITHIN[dtype.name] if _is_seen_again() else UNTOUCHED


def op_dtype(op: str, rules: Rules | None) -> Any:
    """The dtype of an op that ``rules`` allow or deny; None if it follows its inputs."""
    if rules is None or rules is UNTOUCHED:
        return None
    if rules is ALL_FLOAT32:
        return FLOAT32
    return {"allow": rules.low, "deny": FLOAT32}.get(rules.by_op.get(op, rules.unlisted))


def _as_one_op(op: str, kernel: str, run: Callable[..., Any], inputs: Any) -> Any:
    """``run(inputs)`` as one op of the region: cast by its rule, and nothing inside of it by another."""
    rules, seer = active_rules(), watch.get()
    dtype = op_dtype(op, rules)
    follows = rules not in (None, UNTOUCHED) and dtype is None

    def computed(inputs: Any) -> Any:
        if dtype is not None:
            inputs = map_leaves(lambda x: to(x, dtype), inputs)
        with watch.during(None), under_rules(_inside(op, dtype, follows)):
            return run(inputs)

    if seer is None:
        return run(inputs) if rules in (None, UNTOUCHED) else computed(inputs)
    return seer.whole(op, kernel, dtype, computed, inputs)


def _inside(op: str, dtype: Any, follows: bool) -> Rules:
    """The rules within an op that computes in ``dtype``. Attention in 16 bits has float32 logits."""
    if follows or (op == ATTENTION and dtype not in (None, FLOAT32)):
        return FOLLOW
    return UNTOUCHED if dtype is None else within_rules(dtype)


def _function(original: Callable[..., Any], op: str) -> Callable[..., Any]:
    @wraps(original)
    def entry(*args: Any, **kwargs: Any) -> Any:
        if active_rules() is None:
            return original(*args, **kwargs)
        return _as_one_op(op, op, lambda given: original(*given[0], **given[1]), (args, kwargs))

    return entry


def _in_float32(original: Callable[..., Any], op: str) -> Callable[..., Any]:
    """A function as one op in float32: JAX refuses 16 bits in most, ahead of any op."""

    @wraps(original)
    def entry(*args: Any, **kwargs: Any) -> Any:
        rules = active_rules()
        if rules is None or rules is UNTOUCHED:
            return original(*args, **kwargs)
        dtype = op_dtype(op, rules) or rules.dtype("promote", leaves((args, kwargs)))

        def run(given: Any) -> Any:
            args, kwargs = map_leaves(lambda x: to(x, FLOAT32), given)
            with under_rules(ALL_FLOAT32):
                results = original(*args, **kwargs)
            return map_leaves(lambda x: to(x, dtype), results)  # rounded once

        return _as_one_op(op, op, run, (args, kwargs))

    return entry


def _layer(original: Callable[..., Any], op: str) -> Callable[..., Any]:
    @wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        rules = active_rules()
        if rules is None or (op_dtype(op, rules) is None and watch.get() is None):
            return original(self, *args, **kwargs)
        own = [variable for _, variable in own_parameters(self)]

        def run(given: Any) -> Any:
            args, values, kwargs = given
            with holding(own, values), LAST_OF_SEVERAL:
                return original(self, *args, **kwargs)

        inputs = args, values_of(own), kwargs
        return _as_one_op(op, type(self).__name__, run, inputs)

    return __call__


@function_ops.answered_by
def _function_op(name: str, function: function_ops.Function) -> function_ops.Function | None:
    """A function that the policy lists: its arguments are cast, and nothing inside of it."""
    rules = active_rules()
    dtype = None if rules is None else rules.of_function(name)
    if dtype is None:
        return None

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = map_leaves(lambda x: to(x, dtype), (args, kwargs))
        with under_rules(within_rules(dtype)):
            return function(*args, **kwargs)

    return run
