"""Python functions that policies allow or deny: a package's, by their paths, and registered ones."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import their_layers
from their_layers import fused_projection

import ampbridge as amp
from ampbridge import Policy, lens

X = np.random.default_rng(0).uniform(-0.5, 0.5, (4, 4)).astype(np.float32)


@amp.register_op
def registered(x):
    return tf.exp(tf.matmul(x, x))


CALLS = {
    "their_layers:fused_projection": lambda x: fused_projection(x, x),
    "their_layers:twice": lambda x: their_layers.twice(x),
    f"{__name__}:registered": registered,
}
DTYPES = {"allow": tf.bfloat16, "deny": tf.float32}

every_function = pytest.mark.parametrize("name", CALLS)
every_rule = pytest.mark.parametrize("rule", ["allow", "deny"])


@pytest.fixture(autouse=True)
def nothing_seen():
    their_layers.SEEN.clear()


def policy(rule, name, execution):
    return Policy("O1", "bfloat16", execution=execution, **{rule: [name]})


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("execution", ["native", "simulated"])
@every_function
@every_rule
def test_it_runs_as_a_whole_forward_and_backward(rule, name, execution, compiled):
    given = tf.float32 if rule == "allow" else tf.bfloat16

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            with amp.autocast(policy(rule, name, execution), "tensorflow"):
                y = CALLS[name](x)
        return y, tape.gradient(y, x)

    x = tf.cast(X, given)
    y, gradient = (tf.function(run) if compiled else run)(x)
    assert (y.dtype, gradient.dtype) == (DTYPES[rule], given)
    inside = "bfloat16" if (rule, execution) == ("allow", "native") else "float32"
    assert set(their_layers.SEEN) <= {inside}
    low = tf.cast(tf.cast(X, tf.bfloat16), tf.float32).numpy().astype(np.float64)
    exact = 2 * low if name.endswith("twice") else np.exp(low @ low)
    tolerance = 2.0**-6 if rule == "allow" else 2.0**-20
    np.testing.assert_allclose(tf.cast(y, tf.float32), exact, rtol=tolerance)


def test_unlisted_its_parts_follow_their_rules():
    with amp.autocast(Policy("O1", "bfloat16", execution="native"), "tensorflow"):
        y = fused_projection(tf.constant(X), tf.constant(X))
    assert (their_layers.SEEN, y.dtype) == (["bfloat16"], tf.float32)


@every_function
@every_rule
def test_the_census_shows_it_as_one_op(rule, name):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])

    def loss_fn(model, x):
        return tf.reduce_mean(tf.cast(CALLS[name](model(x)), tf.float32))

    census = lens.census(loss_fn, model, tf.constant(X), policy=policy(rule, name, "simulated"))
    rows = [(row.op, row.dtype, row.rule, row.calls) for row in census.rows]
    assert rows[0][:2] == ("linear", "bfloat16")
    assert rows[1] == (name, DTYPES[rule].name, f"your {rule}", 1)
    assert [row[0] for row in rows[2:]] == ["mean"]


@pytest.mark.parametrize("compile", [False, True])
@every_rule
def test_a_step_trains_through_it(rule, compile):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    optimizer = keras.optimizers.SGD(0.1)

    def loss_fn(model, x):
        y = fused_projection(model(x), x)
        return tf.reduce_mean((tf.cast(y, tf.float32) - 2.0) ** 2)

    chosen = policy(rule, "their_layers:fused_projection", "simulated")
    step = amp.train_step(loss_fn, model, optimizer, policy=chosen, compile=compile)
    losses = [float(step(tf.constant(X)).loss) for _ in range(15)]
    assert losses[-1] < losses[0]


def test_a_registered_function_is_traced_by_autograph_as_ever():
    doubled = amp.register_op(lambda x: x * 2 if x > 0 else x, name="tests:doubled")
    assert float(tf.function(lambda x: registered(x)[0, 0])(tf.zeros((2, 2)))) == 1.0
    assert float(doubled(tf.constant(1.0))) == 2.0
