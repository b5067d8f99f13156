"""The trace of a region: it casts the inputs of each op, and hands it to the trace below.

Nothing of JAX is replaced. A trace sees every primitive, and every jitted function of ``jax.numpy`` by
its name, eagerly and in ``jit``, ``grad`` and ``vmap``. What was traced before (the bodies of loops, of
a user's ``jit``) arrives as a jaxpr and is evaluated under the rules. Ops that an inner region decided,
in a body that was traced under it, carry its number in the names of their scopes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend import core as jex
from jax.extend import linear_util as lu
from jax.interpreters.ad import Zero

from ampbridge.adapters.interrupts import LAST_OF_SEVERAL
from ampbridge.adapters.scoped import Scoped
from ampbridge_jax import _private
from ampbridge_jax._private import present_trace
from ampbridge_jax.autocast.rules import (
    ALL_FLOAT32,
    CASTABLE,
    DENIED,
    FLOAT32,
    FOLLOW,
    MOVES,
    UNTOUCHED,
    WITHIN,
    Rules,
    is_castable,
    numbered,
    products,
    to,
)

_make_context: Any = jax.make_user_context
in_region: Any = _make_context(None)
"""A part of jit's key: what a user's jit traced outside of a region is traced again inside."""

watch: Scoped[Any] = Scoped("ampbridge_jax watch", None)
"""Sees each op that runs in a region (``lens.observing``)."""

_SCOPE = "ampbridge@"

_REPEATING = frozenset({"add", "sub", "mul", "div"})
"""Primitives whose operands may have one entry along an axis where others have more."""

_ON_ACCELERATORS = lax.DotAlgorithmPreset.F16_F16_F32
"""What jax.nn asks for in attention in float16. XLA's CPU has no such algorithm (jax 0.10.2) and computes
the same without its name: products of float16 in float32."""

RECOMPUTED = ("checkpoint", "remat", "remat2")
"""The names of the primitive of ``jax.checkpoint``."""

Higher = Callable[[Rules, Sequence[Any], Any], Any]
HIGHER: dict[str, Higher] = {}
"""How primitives that hold jaxprs run under rules: those of ``higher_order``."""


class RegionTrace(_private.Trace):
    """A trace that casts.

    Attributes:
        parent: the trace below, to which ops go.
        mark: whether the ops say in their scopes which region decided them: a region around this one
            will see them again.
    """

    __slots__ = ("mark", "parent", "rules")

    def __init__(self, parent: Any, rules: Rules, *, mark: bool = False) -> None:
        super().__init__()
        self.parent, self.rules, self.mark = parent, rules, mark
        _private.as_if_it_were(self, parent)

    def below(self) -> AbstractContextManager[Any]:
        """A block whose ops go to the trace below."""
        context: AbstractContextManager[Any] = _private.set_current_trace(self.parent)
        return context

    def marked(self) -> AbstractContextManager[Any]:
        """A block whose ops say that this region decided them."""
        return jax.named_scope(f"{_SCOPE}{self.rules.number}") if self.mark else nullcontext()

    def stage_value(self, val: Any) -> Any:
        """See ``jax.core.Trace``."""
        return self.parent.stage_value(val)

    def process_primitive(self, primitive: Any, args: Any, params: Any, /) -> Any:
        """See ``jax.core.Trace``: one op."""
        rules = _decided() or self.rules
        seer = watch.get()
        if seer is not None:
            with self.below():
                seen = seer.seen(self, rules, primitive, args, params)
            if seen is not None:
                return seen
        with self.below(), self.marked(), LAST_OF_SEVERAL:
            return _run(rules, primitive, args, params)

    def process_call(self, primitive: Any, fun: Any, args: Any, params: Any, /) -> Any:
        """See ``jax.core.Trace``: what JAX 0.10 makes of a recomputed loop."""
        rules = _decided() or self.rules
        with self.below(), self.marked(), LAST_OF_SEVERAL:
            return self.parent.process_call(primitive, _under(fun, rules), args, params)

    def process_custom_jvp_call(
        self, primitive: Any, fun: Any, jvp: Any, args: Any, /, *, symbolic_zeros: bool
    ) -> Any:
        """See ``jax.core.Trace``: a function with its own derivative, such as relu."""

        def run(*args: Any) -> Any:
            with self.below(), self.marked(), LAST_OF_SEVERAL:
                run_part, rules, inputs = self._of_function(fun, args)
                return self.parent.process_custom_jvp_call(
                    primitive,
                    run_part(fun, rules),
                    run_part(jvp, rules),
                    inputs,
                    symbolic_zeros=symbolic_zeros,
                )

        seer = watch.get()
        if seer is not None and seer.knows(fun.debug_info.func_name) and is_of_jax(fun):
            with self.below():
                return seer.op(fun.debug_info.func_name, self.rules, run, args)
        return run(*args)

    def process_custom_vjp_call(
        self,
        primitive: Any,
        fun: Any,
        fwd: Any,
        bwd: Any,
        args: Any,
        /,
        *,
        out_trees: Any,
        symbolic_zeros: bool,
    ) -> Any:
        """See ``jax.core.Trace``: a function with its own backward pass; JAX's own have theirs as it is."""
        with self.below(), self.marked(), LAST_OF_SEVERAL:
            run_part, rules, args = self._of_function(fun, args)
            return self.parent.process_custom_vjp_call(
                primitive,
                run_part(fun, rules),
                run_part(fwd, rules),
                bwd if run_part is _under else run_part(bwd, rules),
                args,
                out_trees=out_trees,
                symbolic_zeros=symbolic_zeros,
            )

    def process_shard_map(self, primitive: Any, fun: Any, args: Any, /, **params: Any) -> Any:
        """See ``jax.core.Trace``: a function of the shards on each device."""
        rules = _decided() or self.rules

        run = partial(_traced_under, rules, fun)
        with self.below(), self.marked(), LAST_OF_SEVERAL:
            return self.parent.process_shard_map(primitive, run, args, **params)

    def _of_function(self, fun: Any, args: Sequence[Any]) -> tuple[Any, Rules, Sequence[Any]]:
        """How the parts of a function with its own derivative run, under which rules, and its arguments.

        One of JAX's own without a rule follows its inputs: its derivative has the dtypes that it was
        written for.
        """
        rules = _decided() or self.rules
        if not is_of_jax(fun) and rules not in (FOLLOW, UNTOUCHED):
            follows = rules.unlisted == "promote"
            inputs = args if follows else [to(x, rules.dtype(rules.unlisted, args)) for x in args]
            return _as_written, rules, inputs
        name = fun.debug_info.func_name
        category = rules.category(name)
        if name not in rules.categories and category != "deny":
            return _under, FOLLOW, args
        within = {"allow": WITHIN[rules.low.name], "deny": ALL_FLOAT32}.get(category, FOLLOW)
        return _under, within, [to(x, rules.dtype(category, args)) for x in args]


class Writing(RegionTrace):
    """Traces a function in the dtypes that it has without a region, which sees its ops later.

    What was traced for other inputs than those that come may still have numbers of another dtype in it.
    """

    __slots__ = ()

    def __init__(self, parent: Any) -> None:
        super().__init__(parent, FOLLOW)


def _traced_under(rules: Rules, f: Any, *args: Any) -> Any:
    with watch.during(None), _private.set_current_trace(RegionTrace(present_trace(), rules)):
        return f(*args)


@lu.transformation2
def _under(f: Any, rules: Rules, *args: Any) -> Any:
    return _traced_under(rules, f, *args)


@lu.transformation2
def _as_written(f: Any, rules: Rules, *args: Any) -> Any:
    """Ops under ``rules``; but results have the dtypes they were written in, on which JAX insists.

    What reads values, as eager code may, has no program to be looked at: it runs as it is.
    """
    shape: list[Any] = []

    def written(values: Any) -> Any:
        left = iter(values)
        with _private.set_current_trace(Writing(present_trace())):
            results = f(*(next(left) if _is_value(x) else x for x in args))
        leaves, structure = jax.tree.flatten(results, is_leaf=lambda x: not _is_value(x))
        shape[:] = structure, [None if _is_value(x) else x for x in leaves]
        return [*filter(_is_value, leaves)]

    values = [*filter(_is_value, args)]
    try:
        closed = jax.make_jaxpr(written)(values)
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        with _private.set_current_trace(Writing(present_trace())):
            return f(*args)
    found = iter(evaluated(closed, rules, closed.out_avals)(*values))
    structure, leaves = shape
    return structure.unflatten([next(found) if x is None else x for x in leaves])


def _is_value(x: Any) -> bool:
    """Whether ``x`` is neither a zero of differentiation nor says whether there is one."""
    return not isinstance(x, (bool, Zero, SymbolicZero))


def _run(rules: Rules, primitive: Any, args: Any, params: Any) -> Any:
    """One primitive under ``rules``, in the trace below."""
    name = primitive.name
    if name in ("jit", "pjit"):
        return _jitted(rules, args, params)
    if name in HIGHER:
        return HIGHER[name](rules, args, params)
    with in_region(None):  # what runs at once is compiled once for all regions
        return _cast_and_bound(rules, primitive, args, params)


def _cast_and_bound(rules: Rules, primitive: Any, args: Sequence[Any], params: Any) -> Any:
    name = primitive.name
    if rules is DENIED and name == "convert_element_type" and params["new_dtype"] in CASTABLE:
        # jnp.sum and jnp.mean round to the dtype that came; jnp.mean counts in integers where it masks.
        return lax.convert_element_type(args[0], FLOAT32)
    if params.get("precision") is _ON_ACCELERATORS:
        params = {**params, "precision": None}
    if name in MOVES or rules is UNTOUCHED:
        return _bound(primitive, args, params)
    dtype = rules.dtype(rules.category(name), args)
    preferred = params.get("preferred_element_type")
    is_product = preferred is not None and preferred in CASTABLE and any(map(is_castable, args))
    if is_product and rules is not FOLLOW:  # the logits of attention are wider than its inputs
        # A product that was traced in another precision gives what its inputs are.
        params = {**params, "preferred_element_type": dtype}
    return _bound(primitive, [to(x, dtype) for x in args], params)


def _bound(primitive: Any, args: Sequence[Any], params: Any) -> Any:
    """An op in the trace below. What it repeats in 16 bits, such as a bias, is repeated in float32.

    The gradient of that is a sum, which XLA would round at each term.
    """
    if primitive.name == "pvary" and any(map(is_castable, args)):  # on the devices of a shard_map
        (x,) = args
        return to(primitive.bind(to(x, FLOAT32), **params), x.dtype)
    if primitive.name in _REPEATING and any(x.dtype != FLOAT32 for x in args if is_castable(x)):
        shape = jnp.broadcast_shapes(*(x.shape for x in args))
        args = [_repeated(x, shape) for x in args]
    return primitive.bind(*args, **params)


def _repeated(x: Any, shape: tuple[int, ...]) -> Any:
    if not is_castable(x) or not x.ndim or x.shape == shape:
        return x
    return to(lax.broadcast_in_dim(to(x, FLOAT32), shape, range(len(shape))), x.dtype)


def _jitted(rules: Rules, args: Any, params: Any) -> Any:
    closed, name = params["jaxpr"], params["name"]
    category = rules.categories.get(rules.called(name, args)) if is_of_jax(closed) else None
    shardings = params["in_shardings"], params["out_shardings"]
    if category is None:
        return _rewritten(closed, rules, name, params["inline"], *shardings)(*args)
    dtype = rules.dtype(category, args)
    in_float32 = category == "deny" or (category == "allow" and name not in products())
    follows = category == "promote" and name in products()
    inside = DENIED if in_float32 else FOLLOW if follows else rules
    run = _rewritten(closed, inside, name, params["inline"], *shardings)
    results = run(*[to(x, dtype) for x in args])
    return [to(x, dtype) for x in results] if in_float32 else results  # rounded once


@lru_cache(1024)
def _rewritten(closed: Any, rules: Rules, name: str, inline: bool, takes: Any, gives: Any) -> Any:
    run = evaluated(closed, rules)
    run.__name__ = name
    return jax.jit(run, inline=inline, in_shardings=takes, out_shardings=[*gives])


def evaluated(
    closed: Any, rules: Rules, like_outputs: Sequence[Any] | None = None
) -> Callable[..., Any]:
    """The function of a jaxpr under ``rules``; the first outputs in the dtypes of ``like_outputs``."""

    def run(*args: Any) -> Any:
        with _private.set_current_trace(RegionTrace(present_trace(), rules)):
            results = jex.jaxpr_as_fun(closed)(*args)
        if like_outputs is None:
            return results
        pairs = zip(results, like_outputs, strict=False)
        return [to(x, like.dtype) for x, like in pairs] + results[len(like_outputs) :]

    return run


def is_of_jax(function: Any) -> bool:
    """Whether a function that JAX has wrapped or traced is one of its own."""
    return "/jax/_src/" in (function.debug_info.func_filename or "").replace("\\", "/")


def _decided() -> Rules | None:
    """The rules of the innermost region under which this op was traced."""
    for name in reversed(_private.scopes()):
        if name.startswith(_SCOPE):
            return numbered(int(name.removeprefix(_SCOPE)))
    return None
