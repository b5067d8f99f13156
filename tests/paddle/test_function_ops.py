"""Python functions that policies allow or deny: a package's, by their paths, and registered ones."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import their_layers
from their_layers import fused_projection

import ampbridge as amp
from ampbridge import Policy, lens

X = np.random.default_rng(0).uniform(-0.5, 0.5, (4, 4)).astype(np.float32)


@amp.register_op
def registered(x):
    return paddle.exp(paddle.matmul(x, x))


def projected(x):  # of lambdas, Paddle's compiler does not convert what they call
    return fused_projection(x, x)


def doubled(x):
    return their_layers.twice(x)


CALLS = {
    "their_layers:fused_projection": projected,
    "their_layers:twice": doubled,
    "their_layers:Twice.apply": doubled,
    f"{__name__}:registered": registered,
}
DTYPES = {"allow": "bfloat16", "deny": "float32"}

every_function = pytest.mark.parametrize("name", CALLS)
every_rule = pytest.mark.parametrize("rule", ["allow", "deny"])


def policy(rule, name):
    return Policy("O1", "bfloat16", execution="simulated", **{rule: [name]})


def rounded(values):
    return paddle.to_tensor(values).astype("bfloat16").astype("float32").numpy()


def exact(name, values):
    values = values.astype(np.float64)
    return 2 * values if "wice" in name else np.exp(values @ values)


class Weights(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.values = self.create_parameter([4, 4])
        self.values.set_value(X)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@every_function
@every_rule
def test_it_runs_as_a_whole_forward_and_backward(rule, name, compiled):
    model = Weights()
    optimizer = paddle.optimizer.SGD(learning_rate=1.0, parameters=model.parameters())

    def loss_fn(model, x):
        y = CALLS[name](model.values)
        return y.astype("float32").sum(), y

    step = amp.train_step(loss_fn, model, optimizer, policy=policy(rule, name), compile=compiled)
    if compiled and name.endswith(".apply"):
        with pytest.raises(
            Exception, match=r"apply of a PyLayer, which paddle\.jit\.to_static does"
        ):
            step(paddle.ones([1]))
        return
    found = step(paddle.ones([1])).aux.numpy()
    values = rounded(X) if rule == "allow" else X
    assert np.array_equal(found, rounded(found)) == (rule == "allow")
    tolerance = 2.0**-7 if rule == "allow" else 2.0**-20
    np.testing.assert_allclose(found, exact(name, values), rtol=tolerance)
    wide = paddle.to_tensor(values, stop_gradient=False)
    y = wide * 2.0 if "wice" in name else paddle.exp(paddle.matmul(wide, wide))
    (expected,) = paddle.grad(y.sum(), wide)
    tolerance = 2.0**-6 if rule == "allow" else 2.0**-18
    np.testing.assert_allclose(
        X - model.values.numpy(), expected.numpy(), rtol=tolerance, atol=1e-6
    )


def test_denied_it_takes_what_is_low_as_it_is():
    x = paddle.to_tensor(X)
    with amp.autocast(policy("deny", "their_layers:fused_projection"), "paddle"):
        low = paddle.matmul(x, x)
        y = fused_projection(low, low)
    np.testing.assert_allclose(y.numpy(), exact("", low.numpy()), rtol=2.0**-20)


@every_function
@every_rule
def test_the_census_shows_it_as_one_op(rule, name):
    census = lens.census(
        lambda model, x: CALLS[name](model(x)).mean(),
        paddle.nn.Linear(4, 4),
        paddle.to_tensor(X),
        policy=policy(rule, name),
    )
    rows = [(row.op, row.dtype, row.rule, row.calls) for row in census.rows]
    assert rows[0][:2] == ("linear", "bfloat16")
    assert rows[1] == (name, DTYPES[rule], f"your {rule}", 1)
    assert [row[0] for row in rows[2:]] == ["mean"]


def test_recomputation_runs_it_by_the_same_rule():
    from ampbridge_paddle import recompute

    x = paddle.to_tensor(X, stop_gradient=False)
    gradients = []
    for around in (lambda call, x: call(x), recompute):
        x.clear_grad()
        with amp.autocast(policy("deny", "their_layers:fused_projection"), "paddle"):
            y = around(lambda x: fused_projection(x, x), x)
        y.sum().backward()
        gradients.append(x.grad.numpy())
    assert np.array_equal(*gradients)
