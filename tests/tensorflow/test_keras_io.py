"""keras.io's own examples and guide, at every level: fitted, evaluated, saved."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import keras_io  # noqa: E402
import recorder  # noqa: E402
import tensorflow as tf  # noqa: E402

import ampbridge as amp  # noqa: E402
from ampbridge_tensorflow import LossScaleOptimizer  # noqa: E402
from ampbridge_tensorflow.backend import TensorflowBackend  # noqa: E402

# Keras' own conversion of its variables to NumPy.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.usefixtures("graphs_as_traced"),
]

BACKEND = TensorflowBackend()
BATCHES, BATCH = 16, 8
IMAGES = np.random.default_rng(0).random((BATCHES * BATCH, 8, 8, 1), dtype=np.float32)
DIGITS = IMAGES.reshape(-1, 64)
LABELS = DIGITS[:, :10].argmax(1)

POLICIES = {
    f"{level}, {dtype}": amp.Policy(level, dtype, execution="native")
    for level in ("O1", "O2")
    for dtype in ("float16", "bfloat16")
}
PRODUCTS = {"MatMul", "Conv2D", "Conv2DBackpropInput"}


def triplets() -> tf.data.Dataset:
    parts = (IMAGES, IMAGES + 0.1, 1 - IMAGES)
    return tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)


def compiled_vae(model: Any, **how: Any) -> None:
    model.compile(optimizer=keras.optimizers.Adam(1e-3), **how)


def compiled_gan(model: Any) -> None:
    model.compile(
        d_optimizer=keras.optimizers.Adam(learning_rate=3e-4),
        g_optimizer=keras.optimizers.Adam(learning_rate=3e-4),
        loss_fn=keras.losses.BinaryCrossentropy(),
    )


EXAMPLES: dict[str, tuple[Callable[[], Any], Callable[..., None], Callable[[], Any]]] = {
    "VAE": (keras_io.vae, compiled_vae, lambda: IMAGES),
    "GAN": (keras_io.gan, compiled_gan, lambda: IMAGES),
    "siamese": (keras_io.siamese, compiled_vae, triplets),
}


def example(name: str) -> tuple[Any, Callable[..., None], Any]:
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    make, compile, data = EXAMPLES[name]
    return make(), compile, data()


def fit(model: Any, data: Any, **how: Any) -> dict[str, list[float]]:
    history: dict[str, list[float]] = model.fit(
        data,
        batch_size=None if isinstance(data, tf.data.Dataset) else BATCH,
        shuffle=False,
        verbose=0,
        **how,
    ).history
    return history


@contextmanager
def unscaled(policy: amp.Policy | None, optimizers: int) -> Iterator[None]:
    """These training steps know of no loss scale, and float16 needs one: said once an optimizer."""
    if policy is None or not policy.needs_scaling:
        yield
        return
    with pytest.warns(amp.AmpBridgeWarning, match=r"scale_loss\(loss\) before tape") as caught:
        yield
    assert len(caught) == optimizers


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.slow
def test_a_training_step_of_the_user_s_own_runs_its_products_low(
    name: str, policy: amp.Policy
) -> None:
    """They call the parts of the decorated model, and never the model itself."""
    model, compile, data = example(name)
    compile(model)
    model.run_eagerly = True
    with recorder.below_the_adapter() as seen, unscaled(policy, 2 if name == "GAN" else 1):
        amp.decorate(model, policy=policy)
        seen.clear()
        history = fit(model, data, steps_per_epoch=2)
    amp.undecorate(model)
    ran = {dtype for op, dtype in seen if op in PRODUCTS}
    assert ran == {policy.dtype}
    for denied in ("Exp", "Log", "Softmax"):
        assert {dtype for op, dtype in seen if op == denied} <= {"float32"}
    assert all(isinstance(value, float) for values in history.values() for value in values)


@cache
def trained(
    name: str, policy: amp.Policy | None
) -> tuple[dict[str, list[float]], list[np.ndarray]]:
    """The history and the weights of 32 steps; None for plain Keras."""
    model, compile, data = example(name)
    if policy is not None:
        amp.decorate(model, policy=policy)
    compile(model)
    with unscaled(policy, 2 if name == "GAN" else 1):
        history = fit(model, data, epochs=2)
    weights = model.get_weights()
    amp.undecorate(model)
    return history, weights


@pytest.mark.parametrize("name", EXAMPLES)
def test_o0_is_plain_keras_bit_for_bit(name: str) -> None:
    (history, weights), (same, others) = trained(name, None), trained(name, amp.Policy("O0"))
    assert history == same
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name, key", list(zip(EXAMPLES, POLICIES, strict=False)))  # one of each
@pytest.mark.slow
def test_fit_trains_beside_float32(name: str, key: str) -> None:
    (plain, _), (low, _) = trained(name, None), trained(name, POLICIES[key])
    for key in plain:
        assert plain[key] != low[key]
        assert low[key] == pytest.approx(plain[key], rel=2e-2, abs=2e-2)


@pytest.mark.parametrize("name", ["VAE", "siamese"])
def test_evaluating_and_calling_parts_runs_low_too(name: str) -> None:
    policy = POLICIES["O1, bfloat16"]
    model, compile, _ = example(name)
    compile(model)
    part = model.encoder if name == "VAE" else model.siamese_network
    inputs = IMAGES[:4] if name == "VAE" else [IMAGES[:4], IMAGES[4:8], IMAGES[8:12]]
    full = tf.nest.flatten(part(inputs))
    with recorder.below_the_adapter() as seen:
        amp.decorate(model, policy=policy)
        seen.clear()
        outputs = tf.nest.flatten(part(inputs))
        assert {dtype for op, dtype in seen if op in PRODUCTS} == {"bfloat16"}
        assert {output.dtype for output in outputs} == {tf.float32}
        predicted = tf.nest.flatten(part.predict(inputs, verbose=0))
        assert not np.array_equal(predicted[0], full[0])
        seen.clear()
        with amp.autocast("O0", "tensorflow"):
            part(inputs)
    amp.undecorate(model)
    np.testing.assert_array_equal(tf.nest.flatten(part(inputs))[0], full[0])


def test_a_part_of_several_decorated_models_follows_the_last_and_then_the_first() -> None:
    shared = keras.layers.Dense(4)
    models = [keras.Sequential([keras.Input((8,)), shared]) for _ in range(2)]
    x = tf.constant(DIGITS[:3, :8])
    found = [shared(x)]
    for model, dtype in zip(models, ("float16", "bfloat16"), strict=True):
        amp.decorate(model, policy=amp.Policy("O1", dtype, execution="native"))
        found.append(shared(x))
    for model in reversed(models):
        amp.undecorate(model)
        found.append(shared(x))
    full, half, brain, half_again, full_again = map(np.array, found)
    np.testing.assert_array_equal(half, half_again)
    np.testing.assert_array_equal(full, full_again)
    assert not any(np.array_equal(a, b) for a, b in ((full, half), (half, brain), (full, brain)))


def test_parts_of_a_kept_layer_stay_float32_also_when_called_by_themselves() -> None:
    model, _, _ = example("VAE")
    layer = model.encoder.layers[1]
    full = layer(IMAGES[:2])
    amp.decorate(model, policy=POLICIES["O1, bfloat16"].replace(keep=["encoder"]))
    np.testing.assert_array_equal(layer(IMAGES[:2]), full)
    assert not np.array_equal(model.decoder(np.ones((2, 2))), full)
    amp.undecorate(model)


# -- with loss scaling


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_step_that_asks_for_the_scale_is_scaled(level: str) -> None:
    """One line more than keras.io has, as its guide says."""

    class Scaled(keras_io.SiameseModel):
        def _compute_loss(self, data: Any) -> Any:
            return self.optimizer.scale_loss(tf.reduce_mean(super()._compute_loss(data) * 1e-9))

    keras.utils.set_random_seed(1)
    model = Scaled(keras_io.siamese().siamese_network)
    amp.decorate(model, policy=POLICIES[f"{level}, float16"])
    model.compile(keras.optimizers.SGD(1e7))
    before = model.get_weights()
    fit(model, triplets())
    assert type(model.optimizer) is LossScaleOptimizer
    assert int(model.optimizer.scaler.state_dict()["good_steps"]) == BATCHES
    moved = [np.abs(new - old).max() for new, old in zip(model.get_weights(), before, strict=True)]
    assert max(moved) > 1e-4
    amp.undecorate(model)


def guide_s_loop(model: Any, optimizer: Any) -> None:
    optimizer = LossScaleOptimizer(optimizer)
    loss_object = keras.losses.SparseCategoricalCrossentropy()

    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            predictions = model(x)
            loss = loss_object(y, predictions)
            scaled_loss = optimizer.scale_loss(loss)
        scaled_gradients = tape.gradient(scaled_loss, model.trainable_variables)
        optimizer.apply_gradients(zip(scaled_gradients, model.trainable_variables, strict=True))
        return loss

    for i in range(0, len(DIGITS), BATCH):
        train_step(tf.constant(DIGITS[i : i + BATCH]), tf.constant(LABELS[i : i + BATCH]))


def guide_s_fit(model: Any, optimizer: Any) -> None:
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(DIGITS, LABELS, batch_size=BATCH, shuffle=False, verbose=0)
    assert model.evaluate(DIGITS, LABELS, verbose=0)[0] < 2.4


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.slow
def test_the_guide_s_fit_and_loop_train_alike(policy: amp.Policy) -> None:
    weights = []
    for train in (guide_s_fit, guide_s_loop):
        keras.utils.set_random_seed(1)
        model = keras_io.guide_model()
        amp.decorate(model, policy=policy)
        train(model, keras.optimizers.SGD(0.1))
        weights.append(model.get_weights())
        amp.undecorate(model)
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)


# -- saving


@pytest.mark.parametrize("policy", [POLICIES["O2, float16"]], ids=str)
def test_trained_parts_are_saved_loaded_and_cloned_as_float32(
    policy: amp.Policy, tmp_path: Path
) -> None:
    model, compile, data = example("GAN")
    compile(model)
    amp.decorate(model, policy=policy)
    with unscaled(policy, 2):
        fit(model, data)
    model.generator.save(tmp_path / "generator.keras")
    model.generator.save_weights(tmp_path / "generator.weights.h5")
    loaded = keras.models.load_model(tmp_path / "generator.keras")
    cloned = keras.models.clone_model(model.generator)
    cloned.set_weights(model.generator.get_weights())
    copied = copy.deepcopy(model.generator)
    low = model.generator(np.ones((2, 4), np.float32))
    amp.undecorate(model)
    full = model.generator(np.ones((2, 4), np.float32))
    assert not np.array_equal(low, full)
    for other in (loaded, cloned, copied):
        assert BACKEND.decoration(other, None) is None
        np.testing.assert_array_equal(other(np.ones((2, 4), np.float32)), full)
    again, _, _ = example("GAN")
    again.generator.load_weights(tmp_path / "generator.weights.h5")
    np.testing.assert_array_equal(again.generator(np.ones((2, 4), np.float32)), full)


class RawLoss(keras.Model):  # type: ignore[misc]
    """A training step that returns its loss as it is, low, and no metric's mean."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        (x,) = data if isinstance(data, tuple) else (data,)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.dense(x))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"raw": loss}  # under "loss" Keras shows the mean that it tracks itself


def test_a_low_loss_comes_into_the_history_as_a_number() -> None:
    data = np.random.default_rng(0).normal(1.0, 1.0, (8, 4)).astype(np.float32)
    values = []
    for policy in ("O0", "O1:bfloat16"):
        keras.utils.set_random_seed(1)
        model = RawLoss()
        model.compile(optimizer=keras.optimizers.SGD(0.1))
        model(data)
        amp.decorate(model, policy=policy)
        (value,) = fit(model, data)["raw"]
        amp.undecorate(model)
        values.append(value)
    assert type(values[1]) is float
    assert 0.0 < abs(values[1] - values[0]) < 1e-2 * abs(values[0])


# -- what is passed to fit

CLASSES = np.arange(48) % 3


def classified(policy: str | None, folder: Path, option: str) -> tuple[Any, Any]:
    """The history and the weights of a classifier, fitted with an option of Keras'."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, activation="gelu"), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, weighted_metrics=["accuracy"])
    data = np.random.default_rng(0).normal(0.0, 1.0, (48, 4)).astype(np.float32)
    model(data)
    if policy is not None:
        amp.decorate(model, policy=policy)
    callbacks = {
        "checkpoints": [keras.callbacks.ModelCheckpoint(folder / "{epoch}.keras")],
        "early stopping": [keras.callbacks.EarlyStopping("loss", min_delta=10.0, patience=1)],
    }
    weights = {
        "class weights": {"class_weight": {0: 1.0, 1: 4.0, 2: 0.5}},
        "sample weights": {"sample_weight": np.linspace(0.0, 2.0, 48)},
    }
    history = model.fit(
        data, CLASSES, epochs=3, verbose=0, shuffle=False, callbacks=callbacks.get(option, []),
        **weights.get(option, {}),
    ).history  # fmt: skip
    if policy is not None:
        amp.undecorate(model)
    return history, model.get_weights()


@pytest.mark.parametrize(
    "option", ["checkpoints", "early stopping", "class weights", "sample weights"]
)
@pytest.mark.slow
def test_options_of_fit_act_on_a_decorated_model(option: str, tmp_path: Path) -> None:
    history, weights = classified(None, tmp_path, option)
    same_history, same_weights = classified("O0", tmp_path, option)
    assert same_history == history
    assert all(map(np.array_equal, same_weights, weights))
    low_history, low_weights = classified("O1:bfloat16", tmp_path, option)
    assert len(low_history["loss"]) == len(history["loss"]) == (2 if "early" in option else 3)
    np.testing.assert_allclose(low_history["loss"], history["loss"], rtol=2e-2)
    assert not all(map(np.array_equal, low_weights, weights))
    if option == "checkpoints":
        saved = keras.models.load_model(tmp_path / "3.keras")
        assert all(map(np.array_equal, saved.get_weights(), low_weights))
        assert {variable.dtype for variable in saved.weights} == {"float32"}
