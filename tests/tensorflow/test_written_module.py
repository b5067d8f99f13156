"""Modules written for TensorFlow in others' programs: under fit, in a graph, saved, sparse gradients."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from written_programs import SPIKES, STEPS, by_ampbridge

import ampbridge as amp
from ampbridge_port import fidelity
from ampbridge_port.writers import write

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.slow,
]

O1 = amp.Policy("O1", lists="paddle")
PADDLE = amp.Scaling.like("paddle", init_scale=1024.0, growth_interval=4)
RECIPES = {
    "Keras' rule": amp.Recipe(O1, PADDLE),
    "its own rule": amp.Recipe(
        O1,
        amp.Scaling.like(
            "paddle", init_scale=1024.0, growth_interval=4, growth_factor=1.25, backoff_interval=2
        ),
    ),
    "accumulating": amp.Recipe(O1, PADDLE, accumulate=2),
}

Load = Callable[..., ModuleType]


@pytest.fixture(autouse=True)
def _unchanged_settings() -> Iterator[None]:
    yield
    keras.config.set_dtype_policy("float32")
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": False})


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Imports the module of a recipe as a program would, under its file's name."""
    names = []

    def load(recipe: amp.Recipe, native: bool = True, demo: bool = False) -> ModuleType:
        file = tmp_path / f"amp_tf_{len(names)}.py"
        file.write_text(write(recipe, "tensorflow", native=native, demo=demo), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
        names.append(file.stem)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in names:
        del sys.modules[name]


# -- fit, a model with sparse gradients


def language_model() -> keras.Model:
    keras.utils.set_random_seed(3)
    tokens = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(50, 8)(tokens)
    x = keras.layers.BatchNormalization()(keras.layers.MultiHeadAttention(2, 4)(x, x))
    return keras.Model(tokens, keras.layers.Dense(2)(keras.layers.Flatten()(x)))


def data() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    x = random.integers(0, 50, (STEPS, 8, 6), dtype=np.int32)
    y = random.standard_normal((STEPS, 8, 2), dtype=np.float32)
    y[list(SPIKES)] = np.inf
    return x, y


class Watching(keras.callbacks.Callback):  # type: ignore[misc]
    """The scale of each batch, and whether the optimizer ran after it."""

    def __init__(self) -> None:
        super().__init__()
        self.scales: list[float] = []
        self.applied: list[bool] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        native = self.model.optimizer
        self.scales.append(float(native.dynamic_scale if native.built else native.initial_scale))
        self.before = int(native.iterations) if native.built else 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.applied.append(int(self.model.optimizer.iterations) > self.before)


def fitted(model: keras.Model) -> Watching:
    watching, (x, y) = Watching(), data()
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, "callbacks": [watching]}
    model.fit(x.reshape(-1, 6), y.reshape(-1, 2), **options)
    return watching


@pytest.mark.parametrize("name", RECIPES)
def test_fit_follows_the_recipe(load: Load, name: str) -> None:
    module, model = load(RECIPES[name]), language_model()
    model.compile(module.optimizer(keras.optimizers.Adam(1e-3)), "mean_squared_error")
    watching, expected = fitted(model), by_ampbridge(RECIPES[name])
    assert watching.scales == expected.scales
    assert watching.applied == expected.applied
    assert all(np.isfinite(value).all() for value in model.trainable_weights)


def test_with_ampbridge_fit_follows_the_recipe_too(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = RECIPES["its own rule"].replace(clip_each_norm=0.25)
    module, model = load(recipe, native=False), language_model()
    decorate, told = amp.decorate, []
    monkeypatch.setattr(amp, "decorate", lambda *a, **k: told.append(k) or decorate(*a, **k))
    module.compile_model(model, keras.optimizers.SGD(0.1), "mean_squared_error")
    assert told == [{"policy": recipe.policy}]
    assert model.optimizer.inner_optimizer.clipnorm == 0.25
    watching, expected = fitted(model), by_ampbridge(recipe)
    assert watching.scales == expected.scales
    assert watching.applied == expected.applied


def test_where_fit_cannot_follow_there_is_nothing_for_it(load: Load) -> None:
    """An overflow drops a micro-batch under fit; this recipe drops the step."""
    assert not hasattr(load(RECIPES["accumulating"], native=False), "compile_model")
    drops = RECIPES["accumulating"].replace(on_overflow="drop_microbatch")
    model = language_model()
    load(drops, native=False).compile_model(model, keras.optimizers.SGD(0.1), "mse")
    assert model.optimizer.inner_optimizer.gradient_accumulation_steps == 2


@pytest.mark.parametrize("name", ("its own rule", "accumulating"))
def test_a_saved_model_goes_on_as_one_that_was_not(load: Load, name: str, tmp_path: Path) -> None:
    """But for roundings: a float16 kernel of TensorFlow may add in another order in another model."""
    module, model = load(RECIPES[name]), language_model()
    inner = keras.optimizers.SGD(
        1e-3, momentum=0.9
    )  # Adam would make steps of what is rounded to 0
    model.compile(module.optimizer(inner), "mean_squared_error")
    fitted(model)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again.optimizer) is type(model.optimizer)
    assert fitted(again).scales == fitted(model).scales
    for value, wanted in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-5)


# -- a graph of one's own


@pytest.mark.filterwarnings("ignore:.*Gradients do not exist:UserWarning")
@pytest.mark.parametrize("name", RECIPES)
def test_a_step_in_a_graph_takes_sparse_gradients_and_missing_ones(load: Load, name: str) -> None:
    """The sum of rows that repeat, and no step for a weight that no loss depends on."""
    optimizer = load(RECIPES[name]).optimizer(keras.optimizers.SGD(1.0))
    weights = [keras.Variable(np.zeros((4, 2), np.float32)) for _ in range(2)]
    optimizer.build(weights)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            rows = tf.gather(weights[0].value, [1, 1, 2])
            scaled_loss = optimizer.scale_loss(tf.reduce_sum(rows))
        optimizer.apply(tape.gradient(scaled_loss, [each.value for each in weights]), weights)

    for _ in range(RECIPES[name].accumulate):
        step()
    np.testing.assert_array_equal(weights[0].numpy(), [[0, 0], [-2, -2], [-1, -1], [0, 0]])
    np.testing.assert_array_equal(weights[1].numpy(), np.zeros((4, 2)))


# -- precision


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("level", ("O0", "O1", "O2"))
def test_the_policy_is_that_of_keras_layers(load: Load, level: Any, dtype: str) -> None:
    load(amp.Recipe(amp.Policy(level, dtype, lists="paddle")))
    expected = "float32" if level == "O0" else f"mixed_{dtype}"
    assert keras.config.dtype_policy().name == expected


def test_the_graph_optimizer_is_switched_on(load: Load) -> None:
    load(amp.Recipe(amp.Policy("O1", lists="tensorflow"), amp.Scaling.like("keras")))
    assert tf.config.optimizer.get_experimental_options()["auto_mixed_precision"] is True
    assert keras.config.dtype_policy().name == "float32"


class Block(keras.layers.Layer):  # type: ignore[misc]
    """Layers in a list and a dict of a layer."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.parts = [keras.layers.MultiHeadAttention(2, 8, dropout=0.5)]
        self.more = {"last": keras.layers.Dense(4, name="last")}

    def call(self, x: Any, training: bool = False) -> Any:
        return self.more["last"](self.parts[0](x, x, training=training))


def test_denied_and_kept_layers_are_found_wherever_they_are(load: Load) -> None:
    recipe = amp.Recipe(O1.replace(deny=["softmax"], keep=["last", "LayerNormalization"]))
    module, inputs = load(recipe), keras.Input((6, 4))
    x = keras.layers.LayerNormalization()(Block(name="block")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    module.set_precision(model)
    computed = {
        type(layer).__name__ if layer.name != "last" else "last": layer.compute_dtype
        for layer in model._flatten_layers()
    }
    in_float32 = {name for name, dtype in computed.items() if dtype == "float32"}
    assert in_float32 == {"Softmax", "LayerNormalization", "last"}
    assert computed["Dense"] == computed["Dropout"] == "float16"
    assert model(np.ones((2, 6, 4), np.float32), training=True).dtype == tf.float16


def test_what_is_kept_with_its_parts(load: Load) -> None:
    module, model = load(amp.Recipe(O1.replace(keep=["MultiHeadAttention"]))), language_model()
    module.set_precision(model)
    (attention,) = (x for x in model.layers if isinstance(x, keras.layers.MultiHeadAttention))
    assert {part.compute_dtype for part in attention._flatten_layers()} == {"float32"}


def test_a_kept_layer_that_is_not_there_is_an_error(load: Load) -> None:
    with pytest.raises(ValueError, match=r"has the name or class \{'head'\}"):
        load(amp.Recipe(O1.replace(keep=["head"]))).set_precision(language_model())


def test_losses_of_keras_are_float32_whatever_they_are(load: Load) -> None:
    """So that the report does not mention them."""
    recipe = RECIPES["Keras' rule"].replace(policy=O1.replace(deny=["cross_entropy"]))
    load(recipe)
    model, seen = language_model(), []

    def loss(y: Any, predictions: Any) -> Any:
        seen.append(keras.backend.standardize_dtype(predictions.dtype))
        return keras.ops.mean(predictions)

    model.compile("sgd", loss)
    model.train_on_batch(data()[0][0], data()[1][0])
    assert set(seen) == {"float32"}
    logits = keras.ops.ones((4, 2), "float16")
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert entropy(np.zeros(4, "int32"), logits).dtype == tf.float32
    (row,) = fidelity(recipe, "tensorflow", used={"cross_entropy", "linear"}).rows
    assert row.message == "Keras casts layer by layer, not op by op"


# -- demos


@pytest.mark.parametrize("native", (True, False))
@pytest.mark.parametrize(
    "recipe",
    (
        RECIPES["accumulating"].replace(clip_norm=1.0),
        amp.Recipe(O1.replace(deny=["mean"], keep=["head"]), amp.Scaling.like("deepspeed")),
        amp.Recipe("O1", None),
        amp.Recipe(schedule=amp.Schedule([(0, "O0"), (20, "O1")]), save_dtype="float16"),
        amp.Recipe(amp.Policy("O2", lists="native")),
    ),
)
@pytest.mark.filterwarnings("ignore:.*without loss scaling")
def test_a_demo_runs(
    load: Load, recipe: amp.Recipe, native: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    load(recipe, native, demo=True).main()
    printed = capsys.readouterr().out
    assert "Epoch 3/3" in printed or printed.count("StepResult") == 100
