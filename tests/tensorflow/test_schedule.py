"""A schedule changes the dtypes of the ops that run, at its steps, eager and in traced functions."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from recorder import Seen, below_the_adapter, in_graph

import ampbridge as amp
from ampbridge_tensorflow import _private

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
Y = np.array([0, 1, 2, 0])

LEVELS = ("O0", "O1", "O2", "O0", "O2", "O1", "O0")
STEPS_EACH = 2
OPS = ("Sin", "MatMul", "Tanh", "MatMul")
# Sin follows the input, which its layer casts at O2 alone; the second product is the kept head's.
DTYPES = {
    "O0": ("float32", "float32", "float32", "float32"),
    "O1": ("float32", "low", "low", "float32"),
    "O2": ("low", "low", "low", "float32"),
}
FORWARD = {level: list(zip(OPS, seen, strict=True)) for level, seen in DTYPES.items()}
BACKWARD = {
    level: [("MatMul", "float32")] * 2 + [("MatMul", seen[1])] for level, seen in DTYPES.items()
}


def model() -> keras.Model:
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((8,))
    x = layers.Activation(keras.ops.sin)(x)
    x = layers.Dense(16, activation="tanh", name="first")(x)
    x = layers.Dense(3, name="head")(layers.LayerNormalization()(x))
    return keras.Model(inputs, x)


def scheduled_step(low: str, compiled: bool) -> amp.TrainStep:
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    policies = {
        "O0": amp.Policy("O0"),
        "O1": amp.Policy("O1", low, keep=["head"], execution="native"),
        "O2": amp.Policy("O2", low, keep=["head"], execution="native"),
    }
    plan = [(i * STEPS_EACH, policies[level]) for i, level in enumerate(LEVELS)]
    net, sgd = model(), keras.optimizers.SGD(0.01, momentum=0.9)
    return amp.train_step(
        lambda model, x, y: cross_entropy(y, model(x, training=True)),
        net,
        sgd,
        policy=amp.Schedule(plan),
        compile=compiled,
    )


def of_interest(seen: Seen, low: str) -> Seen:
    return [(op, "low" if dtype == low else dtype) for op, dtype in seen if op in OPS]


every_low = pytest.mark.parametrize("low", ("bfloat16", "float16"))


@every_low
def test_eager_kernels_change_at_the_steps_of_the_schedule(low: str) -> None:
    step = scheduled_step(low, compiled=False)
    for level in LEVELS:
        for _ in range(STEPS_EACH):
            with below_the_adapter() as seen:
                assert step(X, Y).applied
            assert of_interest(seen, low) == FORWARD[level] + BACKWARD[level]


class Watch:
    """What stands in for ``tf.function``: the same, and the graph that ran last is known."""

    def __init__(self) -> None:
        self.functions: list[Any] = []
        self.ran: Seen = []

    def function(self, body: Any, **options: Any) -> Any:
        self.functions.append(tf_function(body, **options))
        return self.functions[-1]

    def direct_call(self, concrete: Any) -> Any:
        call, graph = direct_call(concrete), in_graph(concrete)
        self.ran = graph  # tf.function has called it just now

        def run(tensors: list[Any]) -> Any:
            self.ran = graph
            return call(tensors)

        return run

    @property
    def traces(self) -> int:
        return sum(each.experimental_get_tracing_count() for each in self.functions)


tf_function, direct_call = tf.function, _private.direct_call


@every_low
def test_traced_graphs_change_at_the_steps_of_the_schedule(
    low: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One trace for each policy, however often it comes back, the one that builds the optimizer too."""
    watch = Watch()
    monkeypatch.setattr(tf, "function", watch.function)
    monkeypatch.setattr(_private, "direct_call", watch.direct_call)
    step = scheduled_step(low, compiled=True)
    for level in LEVELS:
        for _ in range(STEPS_EACH):
            assert step(X, Y).applied
            assert of_interest(watch.ran, low) == FORWARD[level] + BACKWARD[level]
    assert watch.traces == 3
