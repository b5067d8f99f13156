"""The region: in which precision an op runs.

While a region is open, each op of ``autograd.numpy`` (functions, array operators and methods) and
of ``ampbridge_numpy.functional`` looks up its rule:

    allow     floating inputs are rounded to the low dtype, and so is the result
    deny      floating inputs are taken to float32, and so is the result
    promote   both go by the widest floating input

Whatever the rule, the arithmetic is done in float32 and the result is rounded once, forward and
backward: the numerics of Tensor Cores. It is also the fast way, as NumPy multiplies float16
matrices a hundred times slower than float32 ones, and the safe one, as much of NumPy refuses
bfloat16 or returns another dtype (matmul, einsum, linalg). Ops that only move numbers stay in the
storage dtype.

Out of reach: operators between plain arrays, which NumPy keeps to itself, and functions that were
imported by name (``from autograd.numpy import exp``) before the region was opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, lru_cache, partial, wraps
from typing import Any, NamedTuple, TypeAlias, TypeVar

import autograd.numpy as anp
import ml_dtypes
import numpy as np
from autograd.extend import VJPNode, VSpace, vspace

from ampbridge.adapters.interception import Interception, Site
from ampbridge.adapters.interrupts import LAST_OF_SEVERAL
from ampbridge.adapters.nested import leaves, map_leaves
from ampbridge.adapters.process_setting import no_tf32
from ampbridge.adapters.scoped import Scoped
from ampbridge.adapters.tracing import constant_result
from ampbridge.errors import UnsupportedError
from ampbridge.policies import function_ops, op_table
from ampbridge.policies.effects import refuse_native_lists, warn_of_rules_without_effect
from ampbridge.policies.op_table import Category, no_such_op
from ampbridge.policies.policy import POLICIES_REMEMBERED, Policy
from ampbridge_numpy._private import look_up
from ampbridge_numpy.autocast import rounding

Function = TypeVar("Function", bound=Callable[..., Any])

FLOAT16, FLOAT32, FLOAT64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)  # np.finfo and dtype.kind == "f" do not know it
DTYPES: Mapping[str, np.dtype[Any]] = {
    "float16": FLOAT16,
    "bfloat16": BFLOAT16,
    "float32": FLOAT32,
}
CASTABLE = frozenset(DTYPES.values())
LOW = CASTABLE - {FLOAT32}
FLOATING = CASTABLE | {FLOAT64}  # look dtypes up in sets: np.dtype(np.float64) == None is True

ArrayBox = look_up("ArrayBox")
_BOXES, _new_box, _add_outgrads = look_up("box_types"), look_up("new_box"), look_up("add_outgrads")
_PLAIN = (np.ndarray, np.generic)
_ARRAYS = (ArrayBox, *_PLAIN)

# Scalars that NumPy makes of zero-dimensional bfloat16 arrays; autograd knows NumPy's own only.
ArrayBox.register(ml_dtypes.bfloat16)
VSpace.register(ml_dtypes.bfloat16, lambda value: vspace(np.asarray(value)))


def is_box(x: Any) -> bool:
    """Whether ``x`` is being traced for its gradient."""
    return type(x) in _BOXES


def value_of(x: Any) -> Any:
    """Return the plain array behind a traced one; other values are returned unchanged."""
    while type(x) in _BOXES:
        x = x._value
    return x


def _cast(x: Any, to: np.dtype[Any], through: np.dtype[Any] | None = None) -> Any:
    """Cast ``x`` to ``to``, by way of ``through`` if it is given.

    The gradient is rounded by the same way, and has the dtype of ``x``.
    """
    if type(x) not in _BOXES:
        return _converted(x, to, through)
    if type(x._node) is not VJPNode:
        raise UnsupportedError(
            "Ops of a region have no derivative in forward mode.\nHint: autograd.grad(function)(x)"
        )
    dtype = value_of(x).dtype
    node = _node([x._node], lambda g: (_cast(g, dtype, through),))
    return _new_box(_cast(x._value, to, through), x._trace, node)


def _node(parents: list[VJPNode], vjp: Callable[[Any], Sequence[Any]]) -> VJPNode:
    """A node of autograd's graph; ``vjp`` returns the gradient of each of its parents."""
    node = VJPNode.__new__(VJPNode)
    node.parents, node.vjp = parents, vjp
    return node


# Conversions of arrays in which NumPy warns of no overflow.
_CONVERSIONS: Mapping[Any, Callable[[np.ndarray], np.ndarray]] = {
    (FLOAT16, FLOAT32): rounding.widened,
    (FLOAT32, FLOAT16): rounding.halves,
    (BFLOAT16, FLOAT32): lambda x: x.astype(FLOAT32),
    (FLOAT32, BFLOAT16): lambda x: x.astype(BFLOAT16),
}


def _converted(x: Any, to: np.dtype[Any], through: np.dtype[Any] | None = None) -> Any:
    is_plain = type(x) is np.ndarray
    if through is not None:
        if is_plain and through == FLOAT16 and x.dtype == to == FLOAT32:
            return rounding.rounded_to_halves(x)
        x = _converted(x, through)
    if is_plain:
        if x.dtype == to:
            return x
        conversion = _CONVERSIONS.get((x.dtype, to))
        if conversion is not None:
            return conversion(x)
    # Beyond the largest float16 lies inf: the scaler looks for it.
    with np.errstate(over="ignore"), LAST_OF_SEVERAL:
        return np.asanyarray(x).astype(to, copy=False)


def cast(x: Any, dtype: str) -> Any:
    """Cast ``x`` to ``dtype``, and its gradient back; float64 and integers stay as they are."""
    return _cast(x, DTYPES[dtype]) if dtype_of(x) in CASTABLE else x


def dtype_of(x: Any) -> np.dtype[Any] | None:
    """The dtype of an array, traced or not; None for what is no array."""
    value = value_of(x)
    return value.dtype if isinstance(value, _PLAIN) else None


# -- rules

# NumPy's functions that are a product of matrices or, of vectors, an op of their own.
_PRODUCTS = frozenset({"numpy.dot", "numpy.inner", "numpy.tensordot"})
_OF_MATRICES: Mapping[str, str] = dict.fromkeys(_PRODUCTS, "numpy.matmul")


class Rules(NamedTuple):
    """The rules of a policy, by canonical name or by NumPy's name with ``numpy.`` before it.

    ``of_matrices``: the name whose rule a product follows if its arguments are matrices. A product
    that the user has listed keeps its own rule.
    """

    low: np.dtype[Any]
    categories: Mapping[str, Category]
    unlisted: Category
    functions: Mapping[str, Category] = {}
    of_matrices: Mapping[str, str] = _OF_MATRICES

    def category(self, name: str) -> Category:
        return self.categories.get(name, self.unlisted)


def _multiplies_matrices(a: Any, b: Any, *args: Any, axes: Any = 2, **_: Any) -> bool:
    """Whether neither argument is a scalar, one has two dimensions or more, and axes are summed."""
    (axes,) = args or (axes,)
    values = [value_of(x) for x in (a, b)]
    dimensions = [x.ndim if hasattr(x, "ndim") else np.ndim(x) for x in values]
    return min(dimensions) > 0 and max(dimensions) > 1 and axes != 0


ALL_FLOAT32 = Rules(FLOAT32, {}, "deny")
UNTOUCHED = Rules(FLOAT32, {}, "promote")
"""The rules of a region in which ops are only observed, and nothing is cast."""


def rules_of(policy: Policy) -> Rules:
    """The rules of ``policy``; NumPy has none of its own.

    Raises:
        UnsupportedError: for ``lists="native"`` and ``float32="tf32"``.
        PolicyError: if it lists an op that does not exist.
    """
    return _rules_of(policy, function_ops.rules_of(policy))


@lru_cache(POLICIES_REMEMBERED)
def _rules_of(policy: Policy, functions: function_ops.Rules) -> Rules:
    if policy.float32 == "tf32":
        raise no_tf32("numpy")
    if policy.level == "O0":
        return ALL_FLOAT32
    refuse_native_lists(policy, "NumPy")
    own = {f"numpy.{name}": rule for name, rule in policy.own_rules("numpy").items()}
    for name in own.keys() - op_names().values():
        known = [each.removeprefix("numpy.") for each in op_names().values()]
        raise no_such_op(name.replace(".", ":", 1), "autograd.numpy", known)
    warn_of_rules_without_effect(policy, "numpy", "NumPy", "numpy", lambda op: bool(spellings(op)))
    op_list = policy.op_list
    canonical = {op: op_list.category(op) for op in op_table.ops()}
    return Rules(
        DTYPES[policy.dtype],
        {**canonical, **policy.native_rules("numpy"), **own, **dict(functions)},
        "deny" if op_list.unlisted == "full" else "promote",
        dict(functions),
        {
            name: product
            for name, product in _OF_MATRICES.items()
            if not {*policy.allow, *policy.deny} & {*op_table.native_names("numpy")[name]}
        },
    )


def outside_of_regions() -> AbstractContextManager[Any]:
    """A context in which no region is active."""
    return _interception.paused()


@contextmanager
def region(policy: Policy) -> Iterator[None]:
    """Ops run as ``policy`` says. O0 intercepts nothing, except inside of another region."""
    rules = rules_of(policy)
    if rules is ALL_FLOAT32 and _interception.active.get() in (None, UNTOUCHED):
        yield
        return
    with function_ops.standing(rules.functions), _interception.region(rules):
        yield


SeesOp: TypeAlias = Callable[
    [str, "np.dtype[Any] | None", Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any
]
"""Called instead of each op, with its name, the dtype it computes in, what runs it, and its arguments."""

_watch: Scoped[SeesOp | None] = Scoped("ampbridge_numpy watch", None)


def watching(watch: SeesOp | None) -> AbstractContextManager[None]:
    """Ops of this thread or task are run by ``watch``, where a region is open."""
    return _watch.during(watch)


def is_unwatched() -> bool:
    """Whether no observer sees the ops that run here, as inside of another op."""
    return _watch.get() is None


@contextmanager
def watched(watch: SeesOp) -> Iterator[None]:
    """As ``watching``, also where no region is open."""
    with _interception.region(_interception.active.get() or UNTOUCHED), watching(watch):
        yield


def casts_here() -> bool:
    """Whether an O1 or O2 region is the innermost one."""
    rules = _interception.active.get()
    return rules not in (None, UNTOUCHED, ALL_FLOAT32)


# -- ops

# Ops that have their rule under their own name; indexing is one, attention is a layer.
_own_ops = {"slice", "multi_head_attention"}


def spellings(op: op_table.Op) -> list[str]:
    """The names by which the rule of ``op`` is looked up; none if NumPy and this adapter lack the op."""
    if op.name in _own_ops:
        return [op.name]
    followed = frozenset(op_names().values())
    return [name for name in op.names.get("numpy", ()) if name in followed]


def op(
    name: str, *, moves_only: bool = False, decided_by: int | None = None
) -> Callable[[Function], Function]:
    """Make ``function`` an op that follows the rule of ``name``.

    It is one op, whatever it is made of: nothing is cast inside of it.

    Args:
        moves_only: the op computes nothing, so its inputs stay in the storage dtype.
        decided_by: the number of leading arguments that decide the dtype if the rule is to promote.
            Only these are rounded then; the others (a normalization's weights) are read as they are.
            None for all.
    """

    _own_ops.add(name)
    is_product = name in _PRODUCTS

    def decorate(function: Function) -> Function:
        @wraps(function)
        def entry(*args: Any, **kwargs: Any) -> Any:
            rules = _interception.active.get()
            if rules is None:
                return function(*args, **kwargs)
            called = name
            if is_product and _multiplies_matrices(*args, **kwargs):
                called = rules.of_matrices.get(name, name)
            target = _target(rules, called, args, kwargs, decided_by)
            watch = _watch.get()
            if watch is not None:
                with watching(None):  # one op, whatever it is made of
                    return watch(called, target, entry, args, kwargs)
            if target is None:
                return function(*args, **kwargs)
            held = target if moves_only or target == FLOAT64 else FLOAT32
            deciding = decided_by if rules.category(called) == "promote" else None
            width = held if deciding else target
            casts: set[VJPNode] = set()
            take, take_other = (partial(_taken, casts, held, each) for each in (target, width))
            with _interception.paused():
                inputs = [map_leaves(take, x, _ARRAYS) for x in args[:deciding]]
                inputs += [map_leaves(take_other, x, _ARRAYS) for x in args[len(inputs) :]]
                named = {key: map_leaves(take_other, x, _ARRAYS) for key, x in kwargs.items()}
                result = _opened(function(*inputs, **named))
            if is_box(result):
                return _closed(result, target, casts)
            return map_leaves(lambda x: _rounded(x, target, target), result, _ARRAYS)

        return entry  # type: ignore[return-value]

    return decorate


@function_ops.answered_by
def _function_op(name: str, function: Callable[..., Any]) -> Callable[..., Any] | None:
    return op(name)(function) if has_rule(name) else None


@constant_result
def has_rule(name: str) -> bool:
    """Whether a region is open that allows or denies the function of this name."""
    rules = _interception.active.get()
    return rules is not None and name in rules.functions


def parts_of(name: str) -> AbstractContextManager[Any]:
    """A context in which the parts of a layer follow their own rules; if it is denied, all are float32."""
    rules = _interception.active.get()
    is_denied = rules is not None and rules.category(name) == "deny"
    return _interception.paused(ALL_FLOAT32 if is_denied else rules)


def _target(
    rules: Rules,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    decided_by: int | None,
) -> np.dtype[Any] | None:
    """The dtype to which an op's inputs and result are rounded; None if there is nothing to round.

    With ``dtype=`` the caller has decided. With a float64 array the op runs in float64, because the
    caller has made that array. A float64 scalar does not decide: ``x / np.sqrt(64)`` should have the
    dtype of ``x``.
    """
    if rules is UNTOUCHED or kwargs.get("dtype") is not None:
        return None
    values = map(value_of, leaves([*args, *kwargs.values()], _ARRAYS))
    arrays = [x for x in values if isinstance(x, _PLAIN)]
    dtypes = {x.dtype for x in arrays}
    if FLOAT64 in dtypes and any(x.ndim for x in arrays if x.dtype == FLOAT64):
        return FLOAT64
    if CASTABLE.isdisjoint(dtypes):
        return None
    category = rules.category(name)
    if category != "promote":
        return rules.low if category == "allow" else FLOAT32
    return _widest(arrays if decided_by is None else arrays[:decided_by])


def _widest(arrays: Sequence[np.ndarray | np.generic]) -> np.dtype[Any]:
    """The widest dtype among arrays; scalars count where there is nothing else, as in torch."""
    dtypes = {x.dtype for x in arrays if x.ndim} & CASTABLE
    dtypes = dtypes or {x.dtype for x in arrays} & CASTABLE
    only = dtypes.pop() if len(dtypes) == 1 else None
    return only or FLOAT32  # also for float16 with bfloat16, neither of which holds the other


def _rounded(x: Any, target: np.dtype[Any], held: np.dtype[Any]) -> Any:
    """Round ``x`` to ``target`` and store it in ``held``, if it is floating point.

    A traced array is cast even if that changes nothing. The cast returns the gradient in the dtype of
    ``x``, where autograd (its ``maximum``, ``where`` and ``mean``) would return float64.
    """
    dtype = dtype_of(x)
    if dtype not in FLOATING:
        return x
    is_direct = dtype == FLOAT64 or target in (dtype, held)
    return _cast(x, held, None if is_direct else target)


def _taken(casts: set[VJPNode], held: np.dtype[Any], target: np.dtype[Any], x: Any) -> Any:
    """Round an input of an op, and add the node of the cast to ``casts``, if there is one."""
    rounded = _rounded(x, target, held)
    if rounded is not x and is_box(rounded):
        casts.add(rounded._node)
    return rounded


def _closed(result: Any, target: np.dtype[Any], casts: set[VJPNode]) -> Any:
    """Round the result of an op, and join the casts of its inputs with the op's node.

    The casts stay nodes of their own if the op is made of several nodes. So do the casts of inputs
    that stand before a computed one: gradients must be summed in the same order as without joining.
    """
    node, dtype = result._node, dtype_of(result)
    inputs = [*node.parents]
    is_whole_op = inputs and casts >= {*inputs} and len({*inputs}) == len(inputs)
    if dtype not in FLOATING or not is_whole_op:
        return _rounded(result, target, target)
    joined: list[VJPNode] = []
    while inputs and not (joined and joined[-1].parents[0].parents):
        joined.append(inputs.pop())

    def back(g: Any) -> list[Any]:
        parts = [*node.vjp(_cast(g, dtype))]
        last = zip(joined, reversed(parts), strict=False)
        inner = [cast.vjp(_add_outgrads(None, part)[0])[0] for cast, part in last]
        return parts[: len(inputs)] + inner

    parents = [*inputs, *(cast.parents[0] for cast in joined)]
    return _new_box(_cast(result._value, target), result._trace, _node(parents, back))


def _opened(result: Any) -> Any:
    """Split a result that autograd traces as one, though it is several arrays (``linalg.eigh``)."""
    value = value_of(result)
    if result is value or not isinstance(value, (list, tuple)):
        return result
    parts = [result[i] for i in range(len(value))]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


# -- what is replaced in autograd while a region is open

# Functions whose result has the dtype that the caller writes.
_CONSTRUCTORS = {
    "_array_from_scalar_or_array", "_astype", "array_from_args", "astype", "full", "full_like",
    "linspace", "ones_like", "zeros_like",
}  # fmt: skip

_MOVES_ONLY = {
    "array_split", "atleast_1d", "atleast_2d", "atleast_3d", "concat", "concatenate", "copy", "diag",
    "diagonal", "dsplit", "expand_dims", "extract", "flip", "fliplr", "flipud", "hsplit", "moveaxis",
    "pad", "permute_dims", "ravel", "reshape", "roll", "rollaxis", "rot90", "split", "squeeze",
    "stack", "swapaxes", "take", "take_along_axis", "transpose", "tril", "triu", "unstack", "vsplit",
}  # fmt: skip


def moves_only(name: str) -> bool:
    """Whether the op of this name, as in the rules, computes nothing."""
    return name == "slice" or name.removeprefix("numpy.") in _MOVES_ONLY


# Second names of NumPy's for an op, with a function of their own.
_SECOND_NAMES = {"numpy.amax": "numpy.max", "numpy.amin": "numpy.min"}


@cache
def _sites() -> tuple[Site, ...]:
    """Every place from which an op of autograd is called."""
    ops = {f: op(name, moves_only=moves_only(name))(f) for f, name in op_names().items()}
    slicing = vars(ArrayBox)["__getitem__"]
    ops[slicing] = op("slice", moves_only=True)(slicing)
    owners = (anp, anp.linalg, anp.fft, look_up("numpy_wrapper"), ArrayBox)
    called = [(owner, *item) for owner in owners for item in vars(owner).items()]
    sites = [Site(o, name, f, ops[f]) for o, name, f in called if callable(f) and f in ops]
    by_ufunc = look_up("trace_primitives_map")  # how NumPy's own functions, and x @ w, get here
    if by_ufunc is None:
        return tuple(sites)
    replacement = {ufunc: ops.get(function, function) for ufunc, function in by_ufunc.items()}
    return (*sites, Site(look_up("numpy_boxes"), "trace_primitives_map", by_ufunc, replacement))


@cache
def op_names() -> Mapping[Any, str]:
    """Each function of autograd that is an op -> the name by which its rule is looked up."""
    listed, differentiable = op_table.native_names("numpy"), look_up("primitive_vjps")
    names: dict[Any, str] = {}
    for module, prefix in ((anp, "numpy."), (anp.linalg, "numpy.linalg."), (anp.fft, "numpy.fft.")):
        for attribute, function in vars(module).items():
            name = _SECOND_NAMES.get(prefix + attribute, prefix + attribute)
            if not callable(function) or attribute in _CONSTRUCTORS:
                continue
            if name in listed or (function in differentiable and function not in names):
                names[function] = name  # of absolute and abs, one function, the listed name stays
    return names


_interception: Interception[Rules] = Interception("ampbridge_numpy rules", _sites)
