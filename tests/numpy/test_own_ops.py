"""Ops that the op table lacks: functions of autograd's, Python functions."""

import autograd
import autograd.numpy as anp
import numpy as np
import pytest

import ampbridge as amp
from ampbridge import Policy, PolicyError, lens
from ampbridge_numpy import nn

NAME = "numpy:logaddexp2"
X, Y = np.linspace(0.1, 2, 64, dtype=np.float32), np.linspace(2, 1, 64, dtype=np.float32)


@pytest.mark.parametrize(("rule", "dtype"), [("allow", "float16"), ("deny", "float32")])
def test_it_follows_its_rule_forward_and_backward(rule, dtype):
    given = np.float32 if rule == "allow" else np.float16
    x, y = X.astype(given), Y.astype(given)
    seen = []

    def loss(x):
        with amp.autocast(Policy(**{rule: [NAME]}), "numpy"):
            result = anp.logaddexp2(x, y)
        seen.append(result.dtype)
        return anp.sum(result.astype(np.float32))

    gradient = autograd.grad(loss)(x)
    assert (seen[0], gradient.dtype) == (dtype, given)
    low = X.astype(np.float16).astype(np.float64), Y.astype(np.float16).astype(np.float64)
    tolerance = 2.0**-10 if rule == "allow" or given == np.float16 else 2.0**-22
    expected = 2 ** low[0] / (2 ** low[0] + 2 ** low[1])
    np.testing.assert_allclose(gradient.astype(np.float64), expected, rtol=2 * tolerance)


@pytest.mark.parametrize(("rule", "dtype"), [("allow", "float16"), ("deny", "float32")])
def test_it_is_explained_and_shows_in_the_census(rule, dtype):
    policy = Policy(**{rule: [NAME]})
    row = amp.explain(policy, "numpy").op(NAME)
    assert (row.category, row.dtype) == (rule, dtype)
    census = lens.census(
        lambda model, x: anp.mean(anp.logaddexp2(model(x), x)),
        nn.Linear(4, 4),
        X[:16].reshape(4, 4),
        policy=policy,
    )
    (row,) = [row for row in census.rows if row.op == NAME]
    assert (row.dtype, row.rule, row.calls) == (dtype, f"your {rule}", 1)


def test_what_autograd_does_not_have():
    with (
        pytest.raises(PolicyError) as caught,
        amp.autocast(Policy(deny=["numpy:logaddexp3"]), "numpy"),
    ):
        pass
    assert str(caught.value) == (
        "Unknown op 'numpy:logaddexp3': autograd.numpy has no 'logaddexp3'.\n"
        "Hint: did you mean 'numpy:logaddexp' or 'numpy:logaddexp2'?"
    )


def test_other_frameworks_ops_are_absent():
    policy = Policy(deny=["torch:my_library::my_op"])
    with pytest.warns(amp.AmpBridgeWarning, match="no effect on NumPy"):
        assert amp.explain(policy, "numpy").op("torch:my_library::my_op").by == "absent"
