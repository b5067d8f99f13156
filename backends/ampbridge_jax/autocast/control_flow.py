"""Loops and branches that are called in a region: JAX wants one dtype where ops of the body return two.

What a loop carries keeps the dtype in which it came; branches return the widest dtype of any of them.
While the lens looks, Python runs them, so that each op of each turn is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import cond, fori_loop, scan, switch, while_loop  # as they are outside of regions

from ampbridge.adapters.interception import Site
from ampbridge_jax.autocast.rules import is_castable, to
from ampbridge_jax.autocast.trace import watch

Function = Callable[..., Any]


def sites(casts_here: Callable[[], bool]) -> Iterator[Site]:
    """What stands for JAX's loops and branches; ``casts_here`` says whether a region casts."""
    for name, typed in _TYPED.items():
        original = getattr(lax, name)
        yield Site(lax, name, original, _entry(original, typed, casts_here))


def _entry(original: Function, typed: Function, casts_here: Callable[[], bool]) -> Function:
    @wraps(original)
    def entry(*args: Any, **kwargs: Any) -> Any:
        run = typed if casts_here() else original
        if watch.get() is None:
            return run(*args, **kwargs)
        bodies = [_seen_inside(x) for x in args]
        with jax.disable_jit():  # each turn by itself, on values
            return run(*bodies, **kwargs)

    return entry


def _seen_inside(x: Any) -> Any:
    """A body of a loop that Python runs, or a list of branches: jit in it is what it is elsewhere."""
    if isinstance(x, (list, tuple)) and all(map(_is_body, x)):
        return [_seen_inside(each) for each in x]
    if not _is_body(x):
        return x

    @wraps(x)
    def run(*args: Any) -> Any:
        with jax.disable_jit(False):
            return x(*args)

    return run


def _is_body(x: Any) -> bool:
    """Whether ``x`` is a function; models that are pytrees are values here."""
    return callable(x) and jax.tree_util.all_leaves([x])


def _typed_scan(f: Function, init: Any, *args: Any, **kwargs: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        after, y = f(carry, x)
        return _as_it_came(after, carry), y

    return scan(body, init, *args, **kwargs)


def _typed_while_loop(cond_fun: Function, body_fun: Function, init_val: Any) -> Any:
    return while_loop(cond_fun, lambda value: _as_it_came(body_fun(value), value), init_val)


def _typed_fori_loop(
    lower: Any, upper: Any, body_fun: Function, init_val: Any, **kwargs: Any
) -> Any:
    def body(i: Any, value: Any) -> Any:
        return _as_it_came(body_fun(i, value), value)

    return fori_loop(lower, upper, body, init_val, **kwargs)


def _typed_cond(pred: Any, true_fun: Any, false_fun: Any, *operands: Any, **kwargs: Any) -> Any:
    if not callable(true_fun):  # cond(pred, true_operand, true_fun, false_operand, false_fun)
        return cond(pred, true_fun, false_fun, *operands, **kwargs)
    return cond(pred, *_alike((true_fun, false_fun), operands), *operands, **kwargs)


def _typed_switch(index: Any, branches: Sequence[Function], *operands: Any, **kwargs: Any) -> Any:
    return switch(index, _alike(branches, operands), *operands, **kwargs)


_TYPED: Mapping[str, Function] = {
    "scan": _typed_scan,
    "while_loop": _typed_while_loop,
    "fori_loop": _typed_fori_loop,
    "cond": _typed_cond,
    "switch": _typed_switch,
}


def _as_it_came(after: Any, before: Any) -> Any:
    """``after`` in the dtypes of ``before``; what has another structure is left to JAX's own message."""
    structure: Any
    leaves, structure = jax.tree.flatten(after)
    like = jax.tree.leaves(before)
    if len(leaves) != len(like):
        return after
    pairs = zip(leaves, like, strict=True)
    return structure.unflatten([to(x, old.dtype) if is_castable(old) else x for x, old in pairs])


def _alike(branches: Sequence[Function], operands: Sequence[Any]) -> Sequence[Function]:
    """The branches, their results in one dtype each."""
    returned = [jax.tree.flatten(jax.eval_shape(branch, *operands)) for branch in branches]
    if len({structure for _, structure in returned}) != 1:
        return branches
    dtypes = [_widest(leaves) for leaves in zip(*(each for each, _ in returned), strict=True)]

    def typed(branch: Function) -> Function:
        @wraps(branch)
        def run(*operands: Any) -> Any:
            structure: Any
            leaves, structure = jax.tree.flatten(branch(*operands))
            return structure.unflatten([to(x, d) for x, d in zip(leaves, dtypes, strict=True)])

        return run

    return [typed(branch) for branch in branches]


def _widest(leaves: Sequence[Any]) -> Any:
    dtypes = [x.dtype for x in leaves]
    return jnp.result_type(*dtypes) if all(map(is_castable, leaves)) else dtypes[0]
