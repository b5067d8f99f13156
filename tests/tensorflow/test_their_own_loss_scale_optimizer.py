"""What Keras' own ``loss_scale_optimizer_test`` checks, of our ``LossScaleOptimizer``.

Keras' stateless calls, which are for JAX, are refused (``test_fit.py``). All else holds as there; where
Keras' file calls ``apply`` once, here it is run eager and in a ``tf.function``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import ampbridge as amp  # noqa: E402
from ampbridge_tensorflow import LossScaleOptimizer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

START = [1.0, 2.0, 3.0, 4.0]
GRADIENT = np.array([1.0, 6.0, 7.0, 2.0], np.float32)


@pytest.fixture(params=["eager", "tf.function"])
def applied(request: Any) -> Callable[..., list[float]]:
    """Apply a gradient some times; what becomes of a variable."""

    def run(optimizer: Any, gradient: Any, times: int = 1) -> list[float]:
        variable = keras.Variable(START)
        optimizer.build([variable])

        def once(gradient: Any) -> None:
            optimizer.apply([gradient], [variable])

        call = once if request.param == "eager" else tf.function(once)
        for _ in range(times):
            call(tf.constant(gradient, tf.float32))
        return np.array(tf.convert_to_tensor(variable.value)).tolist()

    return run


def sgd() -> keras.optimizers.SGD:
    return keras.optimizers.SGD(0.5)


@pytest.mark.parametrize("arguments", [{}, {"initial_scale": 400.0, "dynamic_growth_steps": 3}])
def test_config(arguments: dict[str, Any]) -> None:
    inner = keras.optimizers.SGD(0.5, momentum=0.06, nesterov=True, weight_decay=0.004)
    optimizer = LossScaleOptimizer(inner, **arguments)
    described = optimizer.get_config()
    again = LossScaleOptimizer.from_config(described)
    assert again.get_config() == described
    assert again.scaler.state_dict() == optimizer.scaler.state_dict()
    assert again.inner_optimizer.get_config() == inner.get_config()


def test_finite_step(applied: Callable[..., list[float]]) -> None:
    optimizer = LossScaleOptimizer(sgd())
    assert applied(optimizer, GRADIENT * optimizer.initial_scale) == [0.5, -1.0, -0.5, 3.0]


def test_infinite_step(applied: Callable[..., list[float]]) -> None:
    assert applied(LossScaleOptimizer(sgd()), [np.inf] * 4) == START


def test_downscaling(applied: Callable[..., list[float]]) -> None:
    optimizer = LossScaleOptimizer(sgd(), initial_scale=400.0)
    applied(optimizer, [np.inf] * 4, times=4)
    assert float(optimizer.scale_loss(tf.constant(1.0))) == 25.0


def test_upscaling(applied: Callable[..., list[float]]) -> None:
    optimizer = LossScaleOptimizer(sgd(), initial_scale=2.0, dynamic_growth_steps=2)
    applied(optimizer, GRADIENT, times=8)
    assert float(optimizer.scale_loss(tf.constant(1.0))) == 32.0


# -- Keras' arguments


def test_its_arguments_mean_keras_s_rule() -> None:
    optimizer = LossScaleOptimizer(sgd(), initial_scale=400.0, dynamic_growth_steps=2)
    expected = amp.GradScaler.like("keras", init_scale=400.0, growth_interval=2)
    assert optimizer.scaler.state_dict() == expected.state_dict()
    assert (optimizer.initial_scale, optimizer.dynamic_growth_steps) == (400.0, 2)


def test_its_arguments_beside_a_scaler_are_refused() -> None:
    with pytest.raises(amp.ArgumentError, match="were passed beside it"):
        LossScaleOptimizer(sgd(), amp.GradScaler(), initial_scale=400.0)
