"""``Policy(masters=..., slots=...)`` on TensorFlow: any optimizer, ``fit``, XLA and loops by hand."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from kept_masters import SLOTS, KeptSlots, OneArray, policy

import ampbridge as amp
from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from ampbridge_tensorflow.testing import TensorFlowHarness  # noqa: E402


class TestMasters(KeptSlots, OneArray):
    harness = TensorFlowHarness()
    bytes_of_low_slots = 4  # 16-bit values in float32 variables
    takes_layers_later = False  # of Keras

    def moments(self, optimizer: Any) -> list[Any]:
        return [variable.numpy() for variable in optimizer.variables if len(variable.shape)]


def assert_low(values: npt.NDArray[Any]) -> None:
    np.testing.assert_array_equal(values, values.astype(ml_dtypes.bfloat16).astype("f"))


# -- ways to train

BACKEND = amp.backend("tensorflow")
UNITS, UPDATES, RATE = 1024, 64, 2.0**-10
"""Weights of 1 grow by an eighth of a bfloat16 unit in each update."""

ONE = np.ones((1, 1), "f")


def perceptron(slots: str) -> tuple[keras.Model, keras.optimizers.Optimizer]:
    """Decorated; with low slots the optimizer has a momentum, whose products are exact in float32."""
    layer = keras.layers.Dense(UNITS, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((1,)), layer])
    optimizer = keras.optimizers.SGD(RATE, momentum=0.0 if slots == "float32" else 0.625)
    model, optimizer = amp.decorate(model, optimizer, policy("stochastic", slots))
    return model, optimizer


@keras.saving.register_keras_serializable("test_masters")
def falling(_: Any, prediction: Any) -> Any:
    return -tf.reduce_sum(prediction, -1)


def fit(model: Any, optimizer: Any, updates: int = UPDATES, **settings: Any) -> None:
    if not model.compiled:
        model.compile(optimizer, falling, **settings)
    model.fit(tf.data.Dataset.from_tensors((ONE, ONE)).repeat(updates), shuffle=False, verbose=0)


def loop(model: Any, optimizer: Any, compiled: Callable[..., Any], names_variables: bool) -> None:
    variables = model.trainable_variables
    optimizer.build(variables)

    @compiled
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = falling(None, model(x))
        grads = tape.gradient(loss, variables)
        if names_variables:
            optimizer.apply_gradients(zip(grads, variables, strict=True))
        else:
            optimizer.apply(grads)

    for _ in range(UPDATES):
        step(tf.constant(ONE))


def loss_fn(model: Any, x: Any) -> Any:
    return tf.reduce_sum(falling(None, model(x)))


def scaler_loop(model: Any, optimizer: Any) -> None:
    scaler, by = amp.GradScaler(), BACKEND.decoration(model, optimizer).policy
    for _ in range(UPDATES):
        _, grads = amp.value_and_grad(loss_fn, model, ONE, policy=by, scaler=scaler)
        scaler.step(optimizer, grads)
        scaler.update()


def train_step(
    model: Any, optimizer: Any, batches: Any = (ONE,) * UPDATES, **settings: Any
) -> None:
    by = BACKEND.decoration(model, optimizer).policy
    step = amp.train_step(loss_fn, model, optimizer, policy=by, **settings)
    for x in batches:
        step(x)


WAYS: dict[str, Callable[[Any, Any], None]] = {
    "own loop": partial(loop, compiled=lambda step: step, names_variables=True),
    "own loop, traced": partial(loop, compiled=tf.function, names_variables=False),
    "own loop, XLA": partial(
        loop, compiled=partial(tf.function, jit_compile=True), names_variables=True
    ),
    "fit": partial(fit, jit_compile=False),
    "fit, XLA": partial(fit, jit_compile=True),
    "scaler.step": scaler_loop,
    "train_step": train_step,
    "train_step, eager": partial(train_step, compile=False),
}


def held(model: Any, optimizer: Any) -> list[npt.NDArray[Any]]:
    """The weights and their momentums, if there are any."""
    return [np.asarray(each)[0] for each in (*model.get_weights(), *optimizer.momentums)]


@cache
def trained(way: str, slots: str) -> list[npt.NDArray[Any]]:
    model, optimizer = perceptron(slots)
    WAYS[way](model, optimizer)
    amp.undecorate(model)
    return held(model, optimizer)


@pytest.mark.parametrize("way", WAYS)
def test_slots_draw_the_same_wherever_they_run(way: str) -> None:
    kernel, momentum = trained(way, "bfloat16")
    assert_low(momentum)
    assert len(np.unique(momentum)) > 1
    assert np.array_equal([kernel, momentum], trained("own loop", "bfloat16"))


@pytest.mark.parametrize("way", WAYS)
def test_small_updates_move_in_the_mean_and_draw_the_same_wherever_they_run(way: str) -> None:
    (kernel,) = trained(way, "float32")
    assert_low(kernel)
    assert np.array_equal([kernel], trained("own loop", "float32"))
    expected = 2.0**-7 * np.sqrt(UPDATES * (1 / 8) * (7 / 8))  # a binomial distribution's
    assert kernel.std() == pytest.approx(expected, rel=0.1)
    assert abs(kernel.mean() - (1 + UPDATES * RATE)) <= 4 * expected / np.sqrt(UNITS)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_model_that_keras_has_saved_goes_on_with_the_same_draws(tmp_path: Path) -> None:
    fit(*(before := perceptron("bfloat16")), UPDATES // 2)
    before[0].save(tmp_path / "half.keras")
    model = keras.models.load_model(tmp_path / "half.keras")
    amp.decorate(model, model.optimizer, policy("stochastic", "bfloat16"))
    fit(model, model.optimizer, UPDATES // 2)
    assert np.array_equal(held(model, model.optimizer), trained("own loop", "bfloat16"))
    amp.undecorate(model)


@pytest.mark.parametrize("slots", SLOTS)
def test_a_skipped_step_changes_no_bit(slots: str) -> None:
    model, optimizer = perceptron(slots)
    train_step(model, optimizer, [ONE, np.inf * ONE] * UPDATES)
    assert np.array_equal(held(model, optimizer), trained("own loop", slots))
    amp.undecorate(model)


# -- what is loaded

WRITTEN = (
    r"The weights were written in float32. masters=.* rounds them to bfloat16: .*\n"
    r"Hint: Policy\('O2', 'bfloat16'"
)


def by_set_weights(model: Any, source: Any, folder: Path) -> None:
    model.set_weights(source.get_weights())


def by_a_layer(model: Any, source: Any, folder: Path) -> None:
    its_own, others = (next(x for x in m.layers if x.weights) for m in (model, source))
    its_own.set_weights(others.get_weights())


def by_load_weights(model: Any, source: Any, folder: Path) -> None:
    source.save_weights(folder / "a.weights.h5")
    model.load_weights(folder / "a.weights.h5")


def by_a_checkpoint(model: Any, source: Any, folder: Path) -> None:
    path = tf.train.Checkpoint(model=source).save(str(folder / "a"))
    tf.train.Checkpoint(model=model).restore(path)


LOADS = (by_set_weights, by_a_layer, by_load_weights, by_a_checkpoint)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("masters", ["stochastic", None])
def test_float32_weights_that_are_loaded_are_rounded_with_one_warning(
    masters: Any, load: Callable[..., None], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    model, optimizer = TestMasters().made("adamw")
    source, _ = TestMasters().made("adamw")
    source.set_weights([weight + np.float32(0.1) for weight in source.get_weights()])
    amp.decorate(model, optimizer, policy(masters))
    load(model, source, tmp_path)
    (told,) = [str(each.message) for each in recwarn if "weights were" in str(each.message)]
    assert re.match(WRITTEN, told)
    loaded = 2 if load is by_a_layer else 4
    pairs = [*zip(model.get_weights(), source.get_weights(), strict=True)]
    for weight, given in pairs[:loaded]:
        np.testing.assert_array_equal(weight, given.astype(ml_dtypes.bfloat16).astype("f"))
    amp.undecorate(model, optimizer)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("masters", ["float32", "kahan", "stochastic"])
def test_nothing_is_said_where_nothing_is_lost(
    masters: Any, load: Callable[..., None], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    model, optimizer = TestMasters().made("adamw")
    source, _ = TestMasters().made("adamw")
    amp.decorate(source, policy=policy(masters))
    amp.undecorate(source)  # whose weights have the digits that such a model has
    amp.decorate(model, optimizer, policy(masters))
    load(model, source, tmp_path)
    assert not [each for each in recwarn if "weights were" in str(each.message)]
    for weight, given in zip(model.get_weights(), source.get_weights(), strict=True):
        assert np.array_equal(weight, given)
    amp.undecorate(model, optimizer)


def moments_by_a_checkpoint(optimizer: Any, source: Any, folder: Path) -> None:
    path = tf.train.Checkpoint(optimizer=source).save(str(folder / "a"))
    tf.train.Checkpoint(optimizer=optimizer).restore(path)


def moments_by_themselves(optimizer: Any, source: Any, folder: Path) -> None:
    store: dict[str, Any] = {}
    source.save_own_variables(store)
    optimizer.load_own_variables(store)


def moments_set(optimizer: Any, source: Any, folder: Path) -> None:
    optimizer.set_weights([variable.numpy() for variable in source.variables])


@pytest.mark.parametrize("load", [moments_by_a_checkpoint, moments_by_themselves, moments_set])
def test_float32_moments_that_are_loaded_are_rounded_with_a_warning(
    load: Callable[..., None], tmp_path: Path
) -> None:
    tests = TestMasters()
    (_, source, _), (model, optimizer, _) = map(tests.trained, SLOTS)
    with pytest.warns(amp.AmpBridgeWarning, match=r"slots are float32.*lost.\nHint: Policy"):
        load(optimizer, source, tmp_path)
    expected = tests.float64_moments(source).astype(ml_dtypes.bfloat16).astype(np.float64)
    assert np.array_equal(tests.float64_moments(optimizer), expected)
    amp.undecorate(model, optimizer)


# -- optimizers

OPTIMIZERS: dict[str, Any] = {
    name: kind
    for name, kind in vars(keras.optimizers).items()
    if isinstance(kind, type)
    and issubclass(kind, keras.optimizers.Optimizer)
    and kind not in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer)
}
if "MultiOptimizer" in OPTIMIZERS:

    def several(rate: float) -> Any:
        inside = keras.optimizers.SGD(rate)
        return keras.optimizers.MultiOptimizer(lambda _: inside)

    OPTIMIZERS["MultiOptimizer"] = several


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_of_any_optimizer_goes_to_a_number_next_to_it(name: str) -> None:
    gc.collect()  # models of earlier tests, for which updates are replaced as well
    values, apply = np.linspace(1, 2, 129)[:-1].astype("f"), keras.optimizers.Optimizer.apply
    found = []
    for masters in ("float32", "stochastic"):
        module = tf.Module()
        module.pair = [tf.Variable(values), tf.Variable(values)]
        amp.decorate(module, policy=policy(masters))
        OPTIMIZERS[name](2.0**-9).apply([tf.ones_like(v) for v in module.pair], module.pair)
        amp.undecorate(module)
        found.append([variable.numpy() for variable in module.pair])
    (exact, _), (first, second) = found
    for rounded in (first, second):
        assert_low(rounded)
        assert (np.abs(rounded - exact) < 2.0**-7).all()
    assert not np.array_equal(first, second) or np.abs(exact - values).max() < 2.0**-12
    assert keras.optimizers.Optimizer.apply is apply


def test_moments_of_low_parameters_are_low_and_nothing_else_is() -> None:
    """Not the slots of a normalization, averages of weights, or gradients that are added up."""
    settings: dict[str, Any] = {"use_ema": True, "gradient_accumulation_steps": 2}
    found = []
    for slots in SLOTS:
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(8, name="dense"),
                keras.layers.LayerNormalization(name="norm"),
            ],
            name="net",
        )
        inner = keras.optimizers.Adam(1e-3, **settings)
        model.set_weights([np.linspace(1, 2, w.size).reshape(w.shape) for w in model.get_weights()])
        optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1.0)
        amp.decorate(model, optimizer, policy("float32", slots))
        grads = [tf.sin(tf.cast(w, "float32")) for w in model.trainable_variables]
        for _ in range(3):
            optimizer.apply(grads, model.trainable_variables)
        amp.undecorate(model)
        found.append({v.path.rpartition("/")[2]: v.numpy() for v in inner.variables})
    exact, low = found
    differing = {name for name, value in low.items() if not np.array_equal(value, exact[name])}
    kinds = ("momentum", "velocity")
    assert differing == {name for name in low if "dense" in name and name.endswith(kinds)}
    for name in differing:
        assert_low(low[name])
        np.testing.assert_allclose(low[name], exact[name], rtol=2.0**-7)


class WithoutSlots(keras.optimizers.Optimizer):
    """Without moments, which only its first update shows."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        variable.assign_sub(learning_rate * gradient)


@pytest.mark.parametrize("way", ["own loop", "fit, XLA", "train_step"])
def test_an_optimizer_whose_first_update_makes_no_slots_is_told_of_once(
    way: str, recwarn: pytest.WarningsRecorder
) -> None:
    model, _ = perceptron("float32")
    optimizer = WithoutSlots(RATE)
    amp.decorate(model, optimizer, policy("stochastic", "bfloat16"))
    for _ in range(2):
        WAYS[way](model, optimizer)
    told = [str(each.message) for each in recwarn if "no moments" in str(each.message)]
    by = "Policy('O2', 'bfloat16', masters='stochastic')"
    assert told == [
        "slots='bfloat16' of WithoutSlots, which keeps no moments: nothing would be in 16 bits.\n"
        f"Hint: {by}"
    ]
    with pytest.raises(amp.ArgumentError, match="of WithoutSlots, which keeps no moments"):
        amp.decorate(model, optimizer, policy("kahan", "bfloat16"))  # it has been built now
    amp.undecorate(model)


@pytest.mark.parametrize("optimizer", ["sgd", {"class_name": "SGD", "config": {}}, None])
def test_compile_refuses_an_optimizer_without_moments_in_the_words_of_decorate(
    optimizer: Any,
) -> None:
    model, _ = perceptron("bfloat16")
    adam = keras.optimizers.Adam()
    model.compile(adam, "mse")
    with pytest.raises(amp.ArgumentError) as by_decorate:
        amp.decorate(model, keras.optimizers.SGD(), policy("stochastic", "bfloat16"))
    with pytest.raises(amp.ArgumentError) as by_compile:
        model.compile(keras.optimizers.SGD() if optimizer is None else optimizer, "mse")
    assert str(by_compile.value) == str(by_decorate.value)
    assert model.optimizer is adam
    amp.undecorate(model)
    model.compile("sgd", "mse")


def test_compile_rounds_the_moments_of_an_optimizer_that_takes_over() -> None:
    """To nearest, with the warning of decorate; its later updates as those of the first one."""
    model, _ = perceptron("bfloat16")
    taking_over = keras.optimizers.SGD(RATE, momentum=0.625)
    taking_over.build(model.trainable_variables)
    (momentum,) = taking_over.momentums
    values = np.linspace(1, 2, UNITS, dtype="f")[None]
    momentum.assign(values)
    with pytest.warns(amp.AmpBridgeWarning, match=r"slots are float32.*lost.\nHint: Policy"):
        model.compile(taking_over, falling, jit_compile=False)
    np.testing.assert_array_equal(momentum, values.astype(ml_dtypes.bfloat16).astype("f"))
    fit(model, taking_over, 2)
    for value in held(model, taking_over):
        assert_low(value)
    amp.undecorate(model)


def test_masters_of_layers_with_a_precision_of_their_own_are_told_of() -> None:
    layer = keras.layers.Dense(2, dtype="mixed_bfloat16")
    model = keras.Sequential([keras.Input((1,)), layer])
    with pytest.warns(amp.AmpBridgeWarning, match="puts no parameter of the model into 16 bits"):
        amp.decorate(model, keras.optimizers.Adam(), policy("stochastic", "bfloat16"))
    amp.undecorate(model)


def test_another_optimizer_without_moments_is_refused_and_the_decoration_stays() -> None:
    model, _ = perceptron("bfloat16")
    with pytest.raises(amp.ArgumentError, match=r"SGD, which keeps no moments.*\nHint: "):
        amp.train_step(
            loss_fn, model, keras.optimizers.SGD(RATE), policy=policy("stochastic", "bfloat16")
        )(ONE)
    decorated = BACKEND.decoration(model, None)
    assert decorated is not None
    assert decorated.policy == policy("stochastic", "bfloat16")
    amp.undecorate(model)
