"""Which trace of a compiled step runs, past ``tf.function``'s dispatch: the one that it would choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ampbridge as amp
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.step import direct_calls

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
OTHER = X[::-1].copy() * 3


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The concrete functions that were called directly, in order."""
    calls: list[Any] = []
    original = _private.direct_call

    def direct_call(concrete: Any) -> Any:
        call = original(concrete)

        def run(tensors: list[Any]) -> Any:
            calls.append(concrete)
            return call(tensors)

        return run

    monkeypatch.setattr(_private, "direct_call", direct_call)
    return calls


def weighted() -> tuple[keras.Model, keras.optimizers.Optimizer]:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, use_bias=False)])
    model.layers[0].kernel.assign(np.linspace(0, 1, 8, dtype=np.float32)[:, None])
    return model, keras.optimizers.SGD(0.0)  # so that a batch has the same loss each time


def squared(model: Any, x: Any) -> Any:
    return tf.reduce_mean(model(tf.cast(x, tf.float32)) ** 2)


def test_all_steps_but_the_first_are_direct(called: list[Any]) -> None:
    step = amp.train_step(squared, *weighted(), policy="O0")
    eager = amp.train_step(squared, *weighted(), policy="O0", compile=False)
    for place in range(4):
        x = X + np.float32(place)
        assert step(x).loss == pytest.approx(eager(x).loss, rel=1e-6)
    assert len(called) == 3


# -- what a trace depends on: each batch has its own loss, whichever came before


def by_name(model: Any, parts: Any) -> Any:
    return squared(model, parts["a"]) + 2 * squared(model, parts["b"])


def by_container(model: Any, parts: Any) -> Any:
    return squared(model, parts[0]) * (2 if isinstance(parts, list) else 1)


def by_value(model: Any, x: Any, times: Any) -> Any:
    if times is None:
        return squared(model, x) * 3
    return squared(model, x) * (len(times) if isinstance(times, str) else times)


def by_keyword(model: Any, x: Any, **named: Any) -> Any:
    return squared(model, x) * (2 if "twice" in named else 1)


A, B = tf.constant(X), tf.constant(OTHER)
PAIRS: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "shape": (squared, (A,), (A[:2],)),
    "dtype": (squared, (A,), (tf.cast(A * 9, tf.int32),)),
    "rank": (lambda model, x: squared(model, tf.reshape(x, (-1, 8))), (A,), (A[0],)),
    "names": (by_name, ({"a": A, "b": B},), ({"b": A, "a": B},)),
    "container": (by_container, ((A,),), ([A],)),
    "value": (by_value, (A, 2), (A, 5)),
    "text": (by_value, (A, "ab"), (A, "abc")),
    "none": (by_value, (A, None), (A, tf.constant(7.0))),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_another_batch_has_its_own_trace(kind: str, called: list[Any]) -> None:
    loss, *batches = PAIRS[kind]
    step = amp.train_step(loss, *weighted(), policy="O0")
    eager = amp.train_step(loss, *weighted(), policy="O0", compile=False)
    for batch in (*batches, *batches):
        assert step(*batch).loss == pytest.approx(eager(*batch).loss, rel=1e-6)
    assert len(set(map(id, called))) == len(called) == 2


def test_names_of_arguments(called: list[Any]) -> None:
    step = amp.train_step(by_keyword, *weighted(), policy="O0")
    for _ in range(2):
        assert step(A, twice=B).loss == pytest.approx(2 * step(A, once=B).loss, rel=1e-6)
    assert len(set(map(id, called))) == len(called) == 2


def test_many_tensors_keep_their_order(called: list[Any]) -> None:
    def loss(model: Any, *parts: Any) -> Any:
        return sum(place * squared(model, x) for place, x in enumerate(parts, 1))

    step = amp.train_step(loss, *weighted(), policy="O0")
    parts = [A + float(place) for place in range(13)]
    first = step(*parts).loss
    assert step(*parts).loss == first
    assert len(called) == 1


@contextmanager
def functions_run_eagerly() -> Iterator[None]:
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


@cache
def strategy() -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(["/cpu:0"])


SURROUNDINGS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], int]] = {
    "nothing": (nullcontext, 1),
    "a region": (lambda: amp.autocast("O1:bfloat16", "tensorflow"), 2),
    "a strategy": (lambda: strategy().scope(), 2),
    "functions run eagerly": (functions_run_eagerly, 3),
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_what_is_around_the_step(name: str) -> None:
    """Traced where tf.function would, and run as Python where tf.function would be."""
    around, runs = SURROUNDINGS[name]
    ran = []

    def loss(model: Any, x: Any) -> Any:
        ran.append(1)
        return squared(model, x)

    with around():
        step = amp.train_step(loss, *weighted(), policy="O0")
    for function in (partial(step, A), tf.function(lambda: ran.append(1))):
        ran.clear()
        function()
        with around():
            function()
            function()
        function()
        assert len(ran) == runs


def test_a_step_that_runs_eagerly_is_not_traced() -> None:
    ran = []

    def loss(model: Any, x: Any) -> Any:
        ran.append(tf.executing_eagerly())
        return squared(model, x)

    step = amp.train_step(loss, *weighted(), policy="O0")
    with functions_run_eagerly():
        step(A)
        step(A)
    assert ran == [True, True]


def test_handles_are_left_to_tensorflow(called: list[Any]) -> None:
    """What a variant tensor holds is part of its type."""

    def loss(model: Any, x: Any, handle: Any) -> Any:
        return squared(model, x)

    step = amp.train_step(loss, *weighted(), policy="O0")
    handle = tf.raw_ops.EmptyTensorList(element_shape=[2], max_num_elements=3, element_dtype=1)
    for _ in range(3):
        step(A, handle)
    assert not called


def test_data_of_ever_new_shapes_are_remembered_up_to_a_bound(
    called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_calls, "MOST", 3)
    step = amp.train_step(squared, *weighted(), policy="O0")
    for _ in range(2):
        losses = [step(np.full((size, 8), size, np.float32)).loss for size in range(1, 7)]
    assert losses == pytest.approx([size**2 * 16.0 for size in range(1, 7)])
    assert len(called) == 3
