"""Keras on JAX, in processes of its own: Keras asks once, when it is imported, what it runs on."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import run_python

pytestmark = [
    pytest.mark.skipif(find_spec("keras") is None, reason="of Keras' models"),
    pytest.mark.slow,
]


@pytest.mark.parametrize(
    "tests", ["on_keras.py", pytest.param("keras_suite.py", marks=pytest.mark.nightly)]
)
def test_models_of_keras_train(tests):
    options = "-q", "-m", "not slow and not nightly", "-p", "no:cacheprovider"
    environment = {"KERAS_BACKEND": "jax"}
    run_python("-m", "pytest", *options, Path(__file__).parent / tests, environment=environment)


REFUSED = """
import keras, numpy as np
import ampbridge as amp

def loss_fn(model, x):
    return model(x).mean()

x = np.ones((2, 4), np.float32)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
for refused in (
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


def test_layers_that_are_modules_of_flax_are_refused():
    environment = {"KERAS_BACKEND": "jax", "KERAS_NNX_ENABLED": "true"}
    said = (
        "Sequential of Keras is a module of flax here, which refuses what a step does.\n"
        "Hint: KERAS_NNX_ENABLED=false, ahead of `import keras`\n"
    )
    assert run_python("-c", REFUSED, environment=environment) == 4 * said
