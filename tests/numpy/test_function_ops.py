"""Python functions that policies allow or deny: a package's, by their paths, and registered ones."""

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from autograd.extend import defvjp, primitive

import ampbridge as amp
from ampbridge import Policy, lens
from ampbridge.policies.function_ops import shown_whole
from ampbridge_lens.census import Calls
from ampbridge_numpy import nn

X = np.random.default_rng(0).uniform(-0.5, 0.5, (4, 4)).astype(np.float32)
LOW = X.astype(np.float16)


SEEN = []
"""The dtypes that the primitive was given."""


def fused_projection(x, weight):
    """A product and an exponential, which have other rules by themselves."""
    return anp.exp(anp.matmul(x, weight))


@primitive
def softplus(x):
    SEEN.append(x.dtype.name)
    return np.log1p(np.exp(x))


defvjp(softplus, lambda ans, x: lambda g: g / (1 + anp.exp(-x)))


@amp.register_op
def registered(x):
    return anp.exp(anp.matmul(x, x))


CALLS = {
    f"{__name__}:fused_projection": lambda x: fused_projection(x, x),
    f"{__name__}:softplus": lambda x: softplus(x),
    f"{__name__}:registered": registered,
}

every_function = pytest.mark.parametrize("name", CALLS)
every_rule = pytest.mark.parametrize(("rule", "dtype"), [("allow", "float16"), ("deny", "float32")])


@every_function
@every_rule
def test_it_runs_as_a_whole_forward_and_backward(rule, dtype, name):
    given = X if rule == "allow" else LOW
    results = []

    def loss(x):
        with amp.autocast(Policy(**{rule: [name]}), "numpy"):
            results.append(CALLS[name](x))
        return anp.sum(results[-1].astype(np.float32))

    gradient = autograd.grad(loss)(given)
    assert (results[0].dtype, gradient.dtype) == (dtype, given.dtype)
    values = LOW.astype(np.float64)
    exact = np.log1p(np.exp(values)) if name.endswith("softplus") else np.exp(values @ values)
    tolerance = 2.0**-9 if rule == "allow" else 2.0**-20
    np.testing.assert_allclose(results[0]._value.astype(np.float64), exact, rtol=tolerance)


def test_a_primitive_is_given_float32_either_way():
    """Low precision computes in float32 and rounds once, on this backend."""
    SEEN.clear()
    for rule in ("allow", "deny"):
        with amp.autocast(Policy(**{rule: [f"{__name__}:softplus"]}), "numpy"):
            softplus(LOW)
    with amp.autocast("O1", "numpy"):
        softplus(LOW)
    assert SEEN == ["float32", "float32", "float16"]


@every_function
@every_rule
def test_the_census_shows_it_as_one_op(rule, dtype, name):
    census = lens.census(
        lambda model, x: anp.mean(CALLS[name](model(x))),
        nn.Linear(4, 4),
        X,
        policy=Policy(**{rule: [name]}),
    )
    rows = [(row.op, row.dtype, row.rule, row.calls) for row in census.rows]
    assert rows[0][:2] == ("linear", "float16")
    assert rows[1] == (name, dtype, f"your {rule}", 1)
    assert [row[0] for row in rows[2:]] == ["mean"]


def test_unlisted_its_parts_are_shown():
    census = lens.census(lambda m, x: anp.mean(registered(m(x))), nn.Linear(4, 4), X)
    assert [row.op for row in census.rows] == ["linear", "matmul", "exp", "mean"]


def functions_seen(call, *names):
    """The ops of ``call(X)`` where the functions ``names`` are ops without a rule.

    So it is in the float32 pass that a report under a policy is held against.
    """
    model, calls = nn.Linear(4, 4, rng=0), Calls()
    backend = amp.backend("numpy")
    with (
        amp.autocast("O0", "numpy"),
        shown_whole(Policy(allow=names)),
        backend.observe(model, calls, gradients=False),
    ):
        call(X)
    return [call.op for call in calls.seen]


def test_a_function_is_seen_as_one_op_where_it_has_no_rule() -> None:
    name = f"{__name__}:fused_projection"
    assert functions_seen(CALLS[name], name) == [name]


@amp.register_op
def around_another(x):
    return anp.tanh(registered(x))


def test_a_function_within_another_is_not_seen_by_itself() -> None:
    inner, outer = f"{__name__}:registered", f"{__name__}:around_another"
    assert functions_seen(around_another, inner) == [inner, "tanh"]
    assert functions_seen(around_another, inner, outer) == [outer]
