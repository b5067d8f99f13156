"""Paddle's own loop, as `ampbridge compare --native` runs it."""

import pytest

import ampbridge as amp
from ampbridge import workloads
from ampbridge_paddle.native_loop import NativeLoop


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_on_a_cpu_it_takes_the_steps_of_float32(level):
    """Paddle switches its AMP off there, also after its ``decorate``."""
    build = workloads.find("digits-mlp")
    loop = NativeLoop(lambda: build("paddle", 0), amp.Recipe(amp.Policy(level)))
    plain = build("numpy", 0)
    step = amp.train_step(plain.loss_fn, plain.model, plain.optimizer, policy="O0")
    assert loop.execution == "none"
    for theirs, ours in zip(loop.workload.batches[:3], plain.batches[:3], strict=True):
        assert loop.step(theirs).loss == pytest.approx(step(*ours).loss, rel=1e-5)
