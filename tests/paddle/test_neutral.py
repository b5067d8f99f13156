"""``ampbridge.neutral`` on PaddlePaddle."""

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import neutral
from ampbridge_testing import NeutralConformance, import_or_skip
from ampbridge_testing import neutral as suite

paddle = import_or_skip("paddle")
from ampbridge_paddle.testing import PaddleHarness  # noqa: E402


class TestNeutral(NeutralConformance):
    harness = PaddleHarness()


CLASSES = {
    "adamw": paddle.optimizer.AdamW,
    "adam": paddle.optimizer.Adam,
    "sgd": paddle.optimizer.Momentum,
}


@pytest.mark.parametrize("name", CLASSES)
def test_an_optimizer_is_paddle_s_own(name):
    optimizer = neutral.optimizer(name, neutral.mlp("paddle", 6, [], 4), lr=0.25)
    assert type(optimizer) is CLASSES[name]


def test_an_optimizer_with_a_scheduler_of_paddle_is_refused():
    layer = paddle.nn.Linear(2, 2)
    rate = paddle.optimizer.lr.StepDecay(0.1, 10)
    optimizer = paddle.optimizer.SGD(rate, parameters=layer.parameters())
    with pytest.raises(amp.ArgumentError, match="cannot be set: a schedule of its own decides it"):
        neutral.schedule("linear", optimizer, steps=10)


class Branching(paddle.nn.Layer):
    """A forward pass whose control flow depends on a tensor: a traced program needs it converted."""

    def __init__(self):
        super().__init__()
        self.inner = neutral.mlp("paddle", 6, [], 4)

    def forward(self, x):
        y = self.inner(x)
        if x.sum() > 0:  # noqa: SIM108 (a statement, which Paddle converts)
            y = y * 2
        else:
            y = y * 3
        return y


def test_control_flow_of_a_model_is_compiled():
    model = Branching()
    optimizer = neutral.optimizer("sgd", model, lr=0.0)
    step = amp.train_step(suite.regress, model, optimizer, policy="O0", compile=True)
    x, y = np.ones((2, 6), np.float32), np.zeros((2, 4), np.float32)
    plain = neutral.predict(model.inner, x)
    assert step(x, y).loss == pytest.approx(np.square(2 * plain).mean(), rel=1e-5)
    plain = neutral.predict(model.inner, -x)
    assert step(-x, y).loss == pytest.approx(np.square(3 * plain).mean(), rel=1e-5)


def test_a_compiled_step_has_the_losses_of_an_eager_one():
    losses = {}
    for compiled in (False, True):
        model = neutral.mlp("paddle", 6, [5], 4)
        optimizer = neutral.optimizer("adamw", model, lr=0.01)
        step = amp.train_step(suite.classify, model, optimizer, policy="O0", compile=compiled)
        x = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
        losses[compiled] = [step(x, np.arange(8) % 4).loss for _ in range(3)]
    assert losses[True] == pytest.approx(losses[False], rel=1e-5)
