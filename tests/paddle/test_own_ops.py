"""Ops that the op table lacks: kernels of Paddle's, Python functions."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import ampbridge as amp
from ampbridge import Policy, PolicyError, lens

NAME = "paddle:i0e"  # paddle.i0e
VALUES = np.linspace(0.1, 2, 64, dtype=np.float32)


def policy(rule: str) -> Policy:
    return Policy("O1", "bfloat16", execution="simulated", **{rule: [NAME]})


def rounded(values: np.ndarray) -> np.ndarray:
    return paddle.to_tensor(values).astype("bfloat16").astype("float32").numpy()


class Weights(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.values = self.create_parameter([64])
        self.values.set_value(VALUES)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("rule", ["allow", "deny"])
def test_it_follows_its_rule_forward_and_backward(rule, compiled):
    model = Weights()
    optimizer = paddle.optimizer.SGD(learning_rate=1.0, parameters=model.parameters())

    def loss_fn(model, x):
        y = paddle.i0e(model.values)
        return y.astype("float32").sum(), y

    step = amp.train_step(loss_fn, model, optimizer, policy=policy(rule), compile=compiled)
    found = step(paddle.ones([1])).aux.numpy()
    gradient = VALUES - model.values.numpy()
    values = paddle.to_tensor(rounded(VALUES) if rule == "allow" else VALUES, stop_gradient=False)
    exact = paddle.i0e(values)
    (slope,) = paddle.grad(exact.sum(), values)
    assert np.array_equal(found, rounded(exact.numpy()) if rule == "allow" else exact.numpy())
    expected = rounded(slope.numpy()) if rule == "allow" else slope.numpy()
    np.testing.assert_allclose(
        gradient, expected, atol=2**-22
    )  # of the weights they were taken from


UNLISTED = Policy("O1", "bfloat16", lists="tensorflow", execution="simulated")


@pytest.mark.parametrize("policy", [policy("deny"), UNLISTED], ids=["denied", "unlisted is full"])
def test_a_denied_one_is_float32_on_what_is_low(policy):
    x = paddle.to_tensor(np.full((2, 2), 1.01, np.float32))
    with amp.autocast(policy, "paddle"):
        low = paddle.matmul(x, x)
        y = paddle.i0e(low)
        again = paddle.add(y, y)
    assert not np.array_equal(y.numpy(), rounded(y.numpy()))
    assert np.array_equal(again.numpy(), 2 * y.numpy())


@pytest.mark.parametrize(("rule", "dtype"), [("allow", "bfloat16"), ("deny", "float32")])
def test_it_is_explained_and_shows_in_the_census(rule, dtype):
    row = amp.explain(policy(rule), "paddle").op(NAME)
    assert (row.category, row.dtype) == (rule, dtype)
    census = lens.census(
        lambda model, x: paddle.i0e(model(x)).mean(),
        paddle.nn.Linear(4, 4),
        paddle.ones([2, 4]),
        policy=policy(rule),
    )
    (row,) = [row for row in census.rows if row.op == NAME]
    assert (row.dtype, row.rule, row.calls) == (dtype, f"your {rule}", 1)


def test_a_kernel_that_counts_as_another_has_a_rule_of_its_own():
    # Without one, expand_as goes by expand's.
    rules = amp.explain(Policy("O1", deny=["paddle:expand_as"]), "paddle")
    assert rules.op("paddle:expand_as").category == "deny"
    assert rules.op("expand").category == "promote"


def test_paddle_s_own_lists_take_it_by_the_name_that_is_looked_up():
    native = Policy("O1", lists="paddle", deny=[NAME]).to_native("paddle")
    assert native["auto_cast"]["custom_black_list"] >= {"i0e"}


@pytest.mark.parametrize("name", ["paddle:i0f", "paddle:i0e_", "paddle:matmul_v3_grad"])
def test_what_paddle_does_not_have(name):
    with pytest.raises(PolicyError, match=f"Unknown op '{name}': paddle._C_ops of"):
        amp.explain(Policy(deny=[name]), "paddle")


def test_other_frameworks_ops_are_absent():
    theirs = Policy("O1", deny=["torch:my_library::my_op"])
    with pytest.warns(amp.AmpBridgeWarning, match="no effect on PaddlePaddle"):
        assert amp.explain(theirs, "paddle").op("torch:my_library::my_op").by == "absent"
