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
from jax.lax import custom_linear_solve, scan, switch, while_loop  # as they are outside of regions

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
    goes_on = evaluated(params["cond_jaxpr"], rules)
    run = evaluated(params["body_jaxpr"], rules, like)
    start = [to(x, each.dtype) for x, each in zip(args[consts:], like, strict=True)]
    return while_loop(
        lambda state: goes_on(*args[:of_condition], *state)[0],
        lambda state: run(*args[of_condition:consts], *state),
        start,
    )


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
