"""``Policy(float32=...)``: TensorFlow's switch, read where kernels run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ampbridge as amp

allows_tf32 = tf.config.experimental.tensor_float_32_execution_enabled
X = np.ones((3, 4), np.float32)


@pytest.fixture(autouse=True, params=[True, False], ids=["on", "off"])
def before(request: pytest.FixtureRequest) -> Iterator[bool]:
    """What the user has set: TensorFlow allows TF32 by default."""
    tf.config.experimental.enable_tensor_float_32_execution(request.param)
    yield request.param
    assert allows_tf32() == request.param
    tf.config.experimental.enable_tensor_float_32_execution(True)


def noting(found: list[Any], where: str) -> Any:
    """The identity, which notes the switch when it runs, and when its gradient does."""

    def note(place: str) -> bool:
        found.append((place, allows_tf32()))
        return True

    @tf.custom_gradient
    def noted(x: Any) -> Any:
        def back(gradient: Any) -> Any:
            with tf.control_dependencies([tf.py_function(lambda: note("backward"), [], tf.bool)]):
                return tf.identity(gradient)

        with tf.control_dependencies([tf.py_function(lambda: note(where), [], tf.bool)]):
            return tf.identity(x), back

    return noted


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_a_step_holds_it_from_the_forward_pass_to_the_update(
    precision: Any, compiled: bool
) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    found: list[Any] = []

    class Noting(keras.optimizers.SGD):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            super().update_step(noting(found, "update")(gradient), variable, learning_rate)

    optimizer = Noting(0.1)
    optimizer.build(model.trainable_variables)

    def loss_fn(model: Any, x: Any) -> Any:
        return tf.reduce_mean(noting(found, "forward")(model(x)) ** 2)

    policy = amp.Policy("O1", "bfloat16", float32=precision)
    step = amp.train_step(loss_fn, model, optimizer, policy=policy, compile=compiled)
    for _ in range(2):
        step(X)
    expected = precision == "tf32"
    assert set(found) == {(place, expected) for place in ("forward", "backward", "update")}


def test_regions_nest_and_an_exception_leaves_them(before: bool) -> None:
    found = []
    with amp.autocast(amp.Policy("O0", float32="ieee"), "tensorflow"):
        with (
            pytest.raises(ZeroDivisionError),
            amp.autocast(amp.Policy(float32="tf32"), "tensorflow"),
        ):
            found.append(allows_tf32())
            raise ZeroDivisionError
        with amp.autocast("O1", "tensorflow"):
            found.append(allows_tf32())
    assert [*found, allows_tf32()] == [True, False, before]


def test_a_traced_region_is_refused_unless_one_around_the_call_says_the_same() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    policy = amp.Policy("O1", "bfloat16", float32="tf32")
    amp.decorate(model, policy=policy)
    with pytest.raises(
        amp.UnsupportedError, match=r"(?s)tf.function traces.*Hint: with amp.autocast\("
    ):
        model.fit(X, X[:, :2], verbose=0)
    with amp.autocast(amp.Policy("O0", float32="tf32"), "tensorflow"):
        model.fit(X, X[:, :2], verbose=0)


def test_tf32_is_not_simulated() -> None:
    policy = amp.Policy("O0", float32="tf32", execution="simulated")
    with pytest.raises(amp.UnsupportedError, match="tensorflow: this adapter cannot simulate TF32"):
        amp.autocast(policy, "tensorflow").__enter__()
