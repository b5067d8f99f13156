"""``ampbridge.neutral`` on JAX."""

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import neutral
from ampbridge_testing import NeutralConformance, import_or_skip
from ampbridge_testing import neutral as suite

import_or_skip("jax")
import optax  # noqa: E402
from flax import nnx  # noqa: E402

from ampbridge_jax.testing import JaxHarness  # noqa: E402


class TestNeutral(NeutralConformance):
    harness = JaxHarness()


def test_a_new_rate_is_no_new_trace():
    traces = []

    def loss_fn(model, x, y):
        traces.append(None)
        return suite.regress(model, x, y)

    model = neutral.mlp("jax", 6, [], 4)
    optimizer = neutral.optimizer("adamw", model, lr=0.01)
    schedule = neutral.schedule("cosine", optimizer, steps=10)
    step = amp.train_step(loss_fn, model, optimizer, policy="O1:bfloat16", scheduler=schedule)
    for x, y in suite.regression()[:4]:
        step(x, y)
    assert len(traces) == 1


def of_optax(tx):
    return nnx.Optimizer(neutral.mlp("jax", 2, [], 1), tx, wrt=nnx.Param)


def test_a_rate_in_the_state_of_optax_is_set():
    rate = optax.inject_hyperparams(optax.sgd)(0.5, momentum=0.9)
    schedule = neutral.schedule("linear", of_optax(optax.chain(optax.clip(1.0), rate)), steps=4)
    schedule.step()
    assert schedule.rates == pytest.approx([0.375])


SCHEDULE = optax.linear_schedule(0.1, 0.0, 10)


@pytest.mark.parametrize(
    "tx",
    [optax.sgd(0.1), optax.sgd(SCHEDULE), optax.inject_hyperparams(optax.sgd)(SCHEDULE)],
    ids=["constant", "schedule", "schedule in the state"],
)
def test_a_rate_that_optax_decides_is_refused(tx):
    with pytest.raises(amp.ArgumentError, match="cannot be set: a schedule of its own decides it"):
        neutral.schedule("linear", of_optax(tx), steps=10)


class Halves(nnx.Module):
    def __init__(self):
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        self.frozen = nnx.BatchNorm(8, use_running_average=True, rngs=nnx.Rngs(0))
        self.norm = nnx.BatchNorm(8, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.norm(self.frozen(self.dropout(x)))


def test_predict_gives_each_layer_its_mode_back():
    model, x = Halves(), np.ones((4, 8), np.float32)
    np.testing.assert_allclose(neutral.predict(model, x), x, atol=1e-4)
    assert not model.dropout.deterministic
    assert model.frozen.use_running_average
    assert not model.norm.use_running_average
    assert np.std(neutral.forward(model, x)) > 0.5  # some are dropped
