"""Keras on JAX, in a process of its own: its models may be modules of flax, and train elsewhere."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("keras") is None, reason="of Keras' models")

REFUSED = """
import keras, numpy as np, optax
from flax import nnx
import ampbridge as amp

def loss_fn(model, x):
    return model(x).mean()

x = np.ones((2, 4), np.float32)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = nnx.Optimizer(nnx.Linear(4, 1, rngs=nnx.Rngs(0)), optax.sgd(0.1), wrt=nnx.Param)
for refused in (
    lambda: amp.train_step(loss_fn, model, optimizer),
    lambda: amp.train_step(loss_fn, model, keras.optimizers.SGD(0.1)),
    lambda: amp.decorate(model, policy="O1"),
    lambda: amp.value_and_grad(loss_fn, model, x),
    lambda: amp.lens.census(loss_fn, model, x),
):
    try:
        refused()
    except amp.AmpBridgeError as error:
        print(error)
"""


@pytest.mark.parametrize("is_of_flax", ["true", "false"], ids=["modules of flax", "of Keras alone"])
def test_a_model_of_keras_is_refused(is_of_flax):
    environment = {**os.environ, "KERAS_BACKEND": "jax", "KERAS_NNX_ENABLED": is_of_flax}
    done = subprocess.run(
        [sys.executable, "-c", REFUSED],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    said = (
        "keras.src.models.sequential.Sequential runs here on a framework with which no adapter trains it.\n"
        "Hint: KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch, ahead of `import keras`\n"
    )
    assert done.stdout == 5 * said
