"""Loops, branches, recomputation and linear solves: their jaxprs run under the rules of the region.

What a loop carries keeps the dtype in which it was traced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import jax
from jax.extend import core as jex
from jax.lax import (  # as they are outside of regions
    broadcast_in_dim,
    custom_linear_solve,
    scan,
    select,
    switch,
    while_loop,
)

from ampbridge_jax._private import inputs_of_a_loop
from ampbridge_jax.autocast.rules import Rules, to
from ampbridge_jax.autocast.trace import RECOMPUTED, Higher, evaluated


def _scan(rules: Rules, args: Sequence[Any], params: Any) -> Any:
    consts, carried = inputs_of_a_loop(params)
    like = params["jaxpr"].in_avals[consts : consts + carried]
    run = evaluated(params["jaxpr"], rules, like)
    pairs = zip(args[consts : consts + carried], like, strict=True)
    start = [to(x, each.dtype) for x, each in pairs]

    def body(carry: Any, x: Any) -> Any:
        results = run(*args[:consts], *carry, *x)
        return results[:carried], results[carried:]

    xs = list(args[consts + carried :])
    carry, ys = scan(body, start, xs, params["length"], params["reverse"], params["unroll"])
    return [*carry, *ys]


def _while(rules: Rules, args: Sequence[Any], params: Any) -> Any:
    of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
    consts = of_condition + of_body
    like = params["body_jaxpr"].in_avals[of_body:]
    condition = evaluated(params["cond_jaxpr"], rules)
    run = evaluated(params["body_jaxpr"], rules, like)
    start = [to(x, each.dtype) for x, each in zip(args[consts:], like, strict=True)]
    # By vmap: each goes on as long as it wants.
    is_mapped = bool(params["cond_jaxpr"].out_avals[0].shape)

    def goes_on(state: Any) -> Any:
        (wanted,) = condition(*args[:of_condition], *state)
        return wanted.any() if is_mapped else wanted

    def turn(state: Any) -> Any:
        after = run(*args[of_condition:consts], *state)
        if not is_mapped:
            return after
        (wanted,) = condition(*args[:of_condition], *state)
        axes = range(wanted.ndim)
        return [
            select(broadcast_in_dim(wanted, new.shape, axes), new, old)
            for new, old in zip(after, state, strict=True)
        ]

    return while_loop(goes_on, turn, start)


def _cond(rules: Rules, args: Sequence[Any], params: Any) -> Any:
    branches = [evaluated(branch, rules, branch.out_avals) for branch in params["branches"]]
    return switch(args[0], branches, *args[1:])


def _remat(rules: Rules, args: Sequence[Any], params: Any) -> Any:
    run = evaluated(jex.ClosedJaxpr(params["jaxpr"], ()), rules)
    checkpoint: Any = jax.checkpoint
    return checkpoint(run, prevent_cse=params["prevent_cse"], policy=params["policy"])(*args)


def _linear_solve(rules: Rules, args: Sequence[Any], params: Any) -> Any:
    functions, remaining = [], iter(args)
    for closed, count in zip(params["jaxprs"], params["const_lengths"], strict=True):
        consts = [*islice(remaining, count)]
        functions.append(closed and partial(evaluated(closed, rules, closed.out_avals), *consts))
    matvec, _, solve, transpose_solve = functions
    like = params["jaxprs"].solve.out_avals
    b = [to(x, each.dtype) for x, each in zip(remaining, like, strict=False)]
    has_aux = len(like) > len(b)

    def parts(results: Any) -> Any:
        return (results[: len(b)], results[len(b) :]) if has_aux else results

    found = custom_linear_solve(
        lambda x: matvec(*x),
        b,
        lambda _, b: parts(solve(*b)),
        transpose_solve and (lambda _, b: parts(transpose_solve(*b))),
        has_aux=has_aux,
    )
    return [*found[0], *found[1]] if has_aux else found


RUNS: Mapping[str, Higher] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "custom_linear_solve": _linear_solve,
    **dict.fromkeys(RECOMPUTED, _remat),
}
