"""Warnings point to the user's line."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from user_lines import OF_THE_CORE, check_that_the_last_line_is_warned_of

from ampbridge_tensorflow import LossScaleOptimizer


def model(dtype: str = "float32") -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, dtype=dtype)])


NAMES = {
    "tf": tf,
    "LossScaleOptimizer": LossScaleOptimizer,
    "np": np,
    "model": model,
    "low": lambda: model("bfloat16"),
    "optimizer": lambda model: keras.optimizers.SGD(0.1),
    "loss_fn": lambda model, x: tf.reduce_mean(model(x)),
    "x": tf.ones((3, 2)),
    "inf": tf.ones((3, 2)) * np.inf,
}

# What tells of simulation is in test_simulation.py.
OF_TENSORFLOW = {
    "an op that TensorFlow has not": """
with amp.autocast(amp.Policy(deny=["nll_loss"]), "tensorflow"): pass""",
    "one, in a decorated model": """
m = amp.decorate(model(), policy=amp.Policy(deny=["grid_sample"]))""",
    "one, in a traced step": """
m = model()
step = amp.train_step(loss_fn, m, optimizer(m), policy=amp.Policy(deny=["mish"]))
step(x)""",
    "an update that nobody has scaled": """
m = amp.decorate(model(), policy="O1")
o = optimizer(m)
with tf.GradientTape() as tape: loss = loss_fn(m, x)
grads = tape.gradient(loss, m.trainable_variables)
o.apply(grads, m.trainable_variables)""",
    "an update in fit": """
m = amp.decorate(model(), policy="O1")
m.compile(optimizer(m), "mse", auto_scale_loss=False)
m.fit(x, x, verbose=0)""",
    "steps that fit has skipped": """
m = amp.decorate(model(), policy="O1")
scaling = amp.GradScaler(8.0, warn_after_skips=1)
m.compile(LossScaleOptimizer(optimizer(m), scaler=scaling), "mse")
m.fit(inf, x, verbose=0)""",
}


@pytest.mark.parametrize("kind", OF_THE_CORE)
def test_of_the_core(kind: str) -> None:
    check_that_the_last_line_is_warned_of(OF_THE_CORE[kind], NAMES)


@pytest.mark.parametrize("kind", OF_TENSORFLOW)
def test_of_tensorflow(kind: str) -> None:
    check_that_the_last_line_is_warned_of(OF_TENSORFLOW[kind], NAMES)
