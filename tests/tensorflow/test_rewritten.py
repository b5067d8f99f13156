"""Scripts with Keras' own AMP calls, run as they are and as ``port --to ampbridge`` rewrites them.

Both run on this CPU: losses, scales and weights are the same, bit by bit but where ``tolerances`` says why.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import keras
import numpy as np
import pytest

import ampbridge as amp
from ampbridge_port.rewriting import rewrite

pytestmark = pytest.mark.slow

MODEL = """
inputs = keras.Input((16,))
hidden = keras.layers.Dense(32, activation="relu")(inputs)
hidden = keras.layers.LayerNormalization()(hidden)
outputs = keras.layers.Dense(4, name="head")(hidden)
model = keras.Model(inputs, outputs)
"""

FIT = f"""
import keras
from keras import mixed_precision

policy = mixed_precision.Policy("mixed_float16")
mixed_precision.set_global_policy(policy)
{MODEL}
optimizer = keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=1.0)
model.compile(optimizer=optimizer, loss="mse")
history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
record(history.history["loss"], float(model.optimizer.dynamic_scale))
"""

NAMED_SCALER = f"""
import keras

keras.config.set_dtype_policy("mixed_float16")
{MODEL.replace('name="head"', 'name="head", dtype="float32"')}
model.compile(
    keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05), initial_scale=2.0**17, dynamic_growth_steps=3
    ),
    "mse",
)
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
record(history.history["loss"], float(model.optimizer.dynamic_scale))
"""

BFLOAT16 = f"""
import keras

keras.mixed_precision.set_global_policy("mixed_bfloat16")
{MODEL}
model.compile(keras.optimizers.Adam(0.01), loss="mse")
record(model.fit(x, y / 1e3, batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"])
"""

LOOP = f"""
import keras
import tensorflow as tf

keras.mixed_precision.set_global_policy("mixed_float16")
{MODEL}
optimizer = keras.mixed_precision.LossScaleOptimizer(
    keras.optimizers.SGD(0.05, global_clipnorm=0.5), dynamic_growth_steps=4
)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = keras.losses.MeanSquaredError()(y, model(x, training=True))
        scaled = optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


for start in range(0, 64, 8):
    loss = step(x[start : start + 8], y[start : start + 8])
    record(float(loss), float(optimizer.dynamic_scale))
"""

SEQUENTIAL = """
import keras
from keras import layers

keras.mixed_precision.set_global_policy("mixed_float16")
model = keras.Sequential(
    [layers.Dense(32, activation="relu"), layers.BatchNormalization(), layers.Dense(4)]
)
model.compile("sgd", "mse")
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
record(history.history["loss"], float(model.optimizer.dynamic_scale))
"""

SUBCLASS = """
import keras
from keras import layers


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = layers.Dense(32, activation="gelu")
        self.norm = layers.LayerNormalization()
        self.last = layers.Dense(4)

    def call(self, x):
        return self.last(self.norm(self.first(x)))


def main():
    keras.mixed_precision.set_global_policy("mixed_float16")
    net = Net()
    net.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
    history = net.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    record(history.history["loss"], float(net.optimizer.dynamic_scale))
    return net


model = main()
"""

SCRIPTS = {
    "sequential": SEQUENTIAL,
    "subclass": SUBCLASS,
    "fit": FIT,
    "named scaler": NAMED_SCALER,
    "bfloat16": BFLOAT16,
    "loop": LOOP,
}


def run(script: str) -> tuple[list[Any], list[np.ndarray]]:
    """What ``script`` recorded, and the weights that it came to."""
    keras.utils.set_random_seed(5)
    x = np.random.default_rng(7).normal(size=(64, 16)).astype("float32")
    y = x[:, :4] * np.where(np.arange(64) == 20, 1e4, 1.0)[:, None].astype("float32")
    recorded: list[Any] = []
    names: dict[str, Any] = {"x": x, "y": y, "record": lambda *values: recorded.append(values)}
    try:
        exec(compile(script, "<script>", "exec"), names)
    finally:
        keras.config.set_dtype_policy("float32")
    weights = [np.asarray(weight) for weight in names["model"].get_weights()]
    amp.undecorate(names["model"])  # Keras may keep it, and a decorated model changes other tests
    return recorded, weights


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_rewritten_script_trains_as_before(script: str) -> None:
    rewriting = rewrite(script)
    assert not rewriting.findings
    assert "mixed_float16" not in rewriting.text.replace('Policy("mixed_float16")', "")
    before, weights = run(script)
    # What runs low on a GPU natively is rounded by us on this CPU, unless kernels are asked for.
    native = rewriting.text.replace(
        "ampbridge.Policy(", 'partial(ampbridge.Policy, execution="native")('
    )
    after, same_weights = run("from functools import partial\n" + native)
    losses, weight = tolerances(rewriting.text)
    for values, same_values in zip(before, after, strict=True):
        np.testing.assert_allclose(same_values[0], values[0], rtol=losses)
        assert same_values[1:] == values[1:]  # scales
    for ours, theirs in zip(same_weights, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=weight)


def tolerances(script: str) -> tuple[float, float]:
    """Of losses, relative, and of weights."""
    if "keep=" in script:  # Keras rounds what a normalization returns to a float32 layer
        return 1e-5, 1e-3
    if "bfloat16" in script:  # TensorFlow's BiasAddGrad sums in bfloat16, and in float32 here
        return 1e-3, 5e-3
    return 0.0, 0.0


def test_the_scripts_meet_overflows() -> None:
    recorded, _ = run(LOOP)
    scales = [scale for _, scale in recorded]
    assert min(scales) < 2.0**15
    assert any(later > earlier for earlier, later in pairwise(scales))
