"""Ops that the op table lacks: TensorFlow's by their own names, Python functions."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import ampbridge as amp
from ampbridge import Policy, PolicyError, lens

NAME = "tf:Xlog1py"  # tf.math.xlog1py
VALUES = np.linspace(0.1, 2, 64, dtype=np.float32)


def policy(rule: str, execution: str) -> Policy:
    return Policy("O1", "bfloat16", execution=execution, **{rule: [NAME]})


def run(policy: Policy, x: tf.Tensor, compiled: bool) -> tuple[tf.Tensor, tf.Tensor]:
    def called(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            with amp.autocast(policy, "tensorflow"):
                y = tf.math.xlog1py(x, x)
        return y, tape.gradient(y, x)

    return (tf.function(called) if compiled else called)(x)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("execution", ["native", "simulated"])
@pytest.mark.parametrize("rule", ["allow", "deny"])
def test_it_follows_its_rule(rule, execution, compiled):
    given, runs_in = (tf.float32, tf.bfloat16) if rule == "allow" else (tf.bfloat16, tf.float32)
    x = tf.cast(tf.constant(VALUES), given)
    y, gradient = run(policy(rule, execution), x, compiled)
    assert (y.dtype, gradient.dtype) == (runs_in, given)
    values = tf.cast(tf.cast(x, tf.bfloat16), tf.float32).numpy().astype(np.float64)
    tolerance = 2.0**-7 if rule == "allow" else 2.0**-22
    np.testing.assert_allclose(tf.cast(y, tf.float32), values * np.log1p(values), rtol=tolerance)


@pytest.mark.parametrize(("rule", "dtype"), [("allow", "bfloat16"), ("deny", "float32")])
def test_it_is_explained_and_shows_in_the_census(rule, dtype):
    chosen = policy(rule, "simulated")
    row = amp.explain(chosen, "tensorflow").op(NAME)
    assert (row.category, row.dtype) == (rule, dtype)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])

    def loss_fn(model, x):
        return tf.reduce_mean(tf.cast(tf.math.xlog1py(model(x), model(x) ** 2), tf.float32))

    census = lens.census(loss_fn, model, tf.ones((2, 4)), policy=chosen)
    (row,) = [row for row in census.rows if row.op == NAME]
    assert (row.dtype, row.rule, row.calls) == (dtype, f"your {rule}", 1)


def test_one_without_a_low_kernel_is_explained():
    row = amp.explain(Policy(allow=["tf:Betainc"], execution="native"), "tensorflow").op(
        "tf:Betainc"
    )
    assert (row.category, row.dtype) == ("allow", "float32")
    assert row.why == "Betainc has no float16 kernel"


def test_what_tensorflow_does_not_have():
    with (
        pytest.raises(PolicyError) as caught,
        amp.autocast(Policy(deny=["tf:MatMull"]), "tensorflow"),
    ):
        pass
    assert str(caught.value) == (
        f"Unknown op 'tf:MatMull': TensorFlow {tf.__version__} has no 'MatMull'.\n"
        "Hint: did you mean 'tf:MatMul' or 'tf:BatchMatMul' or 'tf:SparseMatMul'?"
    )


def test_other_frameworks_ops_are_absent():
    theirs = Policy("O1", deny=["torch:my_library::my_op"], execution="native")
    assert amp.explain(theirs, "tensorflow").op("torch:my_library::my_op").by == "absent"
    said = pytest.warns(amp.AmpBridgeWarning, match="no effect on TensorFlow")
    with said, amp.autocast(theirs, "tensorflow"):
        pass
