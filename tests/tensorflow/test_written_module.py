"""A module written for TensorFlow, in a program of somebody else: a Keras 3 model with attention, an
embedding and batch normalization, under fit and in a loop of its own.

What is expected of scales and skips is computed here, from the batches that overflow.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import ampbridge as amp
from ampbridge_port import fidelity
from ampbridge_port.writers import losses, write

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.slow,
]

WORDS, LENGTH, WIDTH, BATCH, BATCHES = 50, 6, 16, 8, 24
SPIKES = (3, 4, 9, 18)
"""Batches whose targets are so large that float16 gradients overflow at any scale."""

GUIDE = amp.Recipe(
    amp.Policy("O1", lists="paddle"),
    amp.Scaling.like("paddle", init_scale=1024.0, growth_interval=4),
)
"""A recipe of Paddle's, whose rule Keras' LossScaleOptimizer has."""

OWN_RULE = GUIDE.replace(
    scaler=amp.Scaling.like(
        "paddle", init_scale=1024.0, growth_interval=4, growth_factor=4.0, backoff_interval=2
    )
)
ACCUMULATING = GUIDE.replace(accumulate=2)


@pytest.fixture(autouse=True)
def _unchanged_settings() -> Iterator[None]:
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Callable[..., ModuleType]]:
    """Imports the module of a recipe as a program would, under its file's name."""
    names = []

    def load(recipe: amp.Recipe, native: bool = True) -> ModuleType:
        file = tmp_path / f"amp_tf_{len(names)}.py"
        file.write_text(write(recipe, "tensorflow", native=native), encoding="utf-8")
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


# -- the model and its data


@keras.saving.register_keras_serializable("tests")
class Pooling(keras.layers.Layer):  # type: ignore[misc]
    """A layer of one's own, which calls a function that the recipe has in float32."""

    def build(self, shape: Any) -> None:
        self.scores = self.add_weight(shape=(shape[-1], 1), name="scores")

    def call(self, x: Any) -> Any:
        weights = keras.ops.softmax(keras.ops.matmul(x, self.scores), axis=1)
        return keras.ops.sum(x * weights, axis=1)


@keras.saving.register_keras_serializable("tests")
class CastingPooling(Pooling):
    """The same with the line that the warning says."""

    def call(self, x: Any) -> Any:
        scores = keras.ops.matmul(x, self.scores)
        x = keras.ops.cast(x, "float32")
        weights = keras.ops.softmax(keras.ops.cast(scores, "float32"), axis=1)
        return keras.ops.sum(x * weights, axis=1)


class Block(keras.layers.Layer):  # type: ignore[misc]
    """Layers in a list, a dict and a tuple of a layer: attention and what follows it."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.parts = [keras.layers.MultiHeadAttention(2, 8, dropout=0.1, name="attention")]
        self.more = {"norm": keras.layers.LayerNormalization(name="norm")}
        self.last = (keras.layers.Dense(WIDTH, activation="softmax", name="last"),)

    def call(self, x: Any, training: bool = False) -> Any:
        (last,) = self.last
        return last(self.more["norm"](x + self.parts[0](x, x, training=training)))


def transformer(pooling: Any = CastingPooling) -> keras.Model:
    keras.utils.set_random_seed(3)
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(WORDS, WIDTH, name="embedding")(tokens)
    attended = keras.layers.MultiHeadAttention(2, 8, name="attention")(x, x)
    x = keras.layers.Add(name="residual")([x, attended])
    x = keras.layers.BatchNormalization(name="batch_norm")(x)
    x = keras.layers.Dense(WIDTH, activation="relu", name="hidden")(x)
    x = pooling(name="pooling")(x)
    gate = keras.layers.Dense(WIDTH, activation="softmax", name="gate")(x)
    x = keras.layers.Multiply(name="gated")([x, gate])
    return keras.Model(tokens, keras.layers.Dense(4, name="head")(x))


def data(spikes: Sequence[int] = SPIKES, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    x = random.integers(0, WORDS, (BATCHES, BATCH, LENGTH), dtype=np.int32)
    y = random.standard_normal((BATCHES, BATCH, 4), dtype=np.float32)
    y[list(spikes)] *= 1e9
    return x, y


# -- what is expected


class Expected(NamedTuple):
    """Of each batch: the scale of its loss, and whether the optimizer ran after it."""

    scales: list[float]
    applied: list[bool]


def by_the_rule(recipe: amp.Recipe, spikes: Sequence[int] = SPIKES) -> Expected:
    """Paddle's rule in Python's own numbers: overflows that count are in a row."""
    scaling, scales, applied = recipe.scaler, [], []
    assert scaling is not None
    scale, finite, bad, overflow = scaling.init_scale, 0, 0, False
    for batch in range(BATCHES):
        scales.append(scale)
        overflow |= batch in spikes
        last = (batch + 1) % recipe.accumulate == 0
        applied.append(last and not overflow)
        if not last:
            continue
        finite, bad = (0, bad + 1) if overflow else (finite + 1, 0)
        if bad == scaling.backoff_interval:
            scale, bad = scale * scaling.backoff_factor, 0
        if finite == scaling.growth_interval:
            scale, finite = scale * scaling.growth_factor, 0
        overflow = False
    return Expected(scales, applied)


RECIPES = {"Keras' rule": GUIDE, "its own rule": OWN_RULE, "accumulating": ACCUMULATING}


def test_the_recipes_differ_in_what_is_expected_of_them() -> None:
    assert by_the_rule(GUIDE).scales[:12] == [1024] * 4 + [512, 256, 256, 256, 256, 512, 256, 256]
    assert len({tuple(by_the_rule(recipe).scales) for recipe in RECIPES.values()}) == 3


# -- a loop of one's own


def loop(
    module: ModuleType, model: keras.Model, optimizer: Any, x: Any, y: Any
) -> tuple[Expected, list[bool]]:
    """What the module's step did, and whether weights moved."""
    step = module.train_step(model, optimizer, keras.losses.MeanSquaredError())
    did, moved = Expected([], []), []
    for tokens, targets in zip(x, y, strict=True):
        before = [value.numpy() for value in model.trainable_variables]
        result = step(tokens, targets)
        after = [value.numpy() for value in model.trainable_variables]
        did.scales.append(float(result.scale))
        did.applied.append(bool(result.applied))
        moved.append(any((old != new).any() for old, new in zip(before, after, strict=True)))
    return did, moved


@pytest.mark.parametrize("name", RECIPES)
def test_a_loop_of_one_s_own_skips_and_scales_by_the_recipe(written: Any, name: str) -> None:
    recipe = RECIPES[name]
    module, model = written(recipe), transformer()
    module.set_precision(model)
    optimizer = module.optimizer(keras.optimizers.Adam(1e-3))
    did, moved = loop(module, model, optimizer, *data())
    assert did == by_the_rule(recipe)
    assert moved == did.applied
    assert all(np.isfinite(value).all() for value in model.get_weights())


def test_a_step_waits_for_nothing(written: Any) -> None:
    """What is traced into a graph of one's own cannot look at a value."""
    for recipe in RECIPES.values():
        module, model = written(recipe), transformer()
        module.set_precision(model)
        optimizer = module.optimizer(keras.optimizers.SGD(1e-3))
        step = module.train_step(model, optimizer, keras.losses.MeanSquaredError())
        x, y = data()
        result = tf.function(step)(tf.constant(x[0]), tf.constant(y[0]))
        assert all(isinstance(value, tf.Tensor) for value in result)


def test_losses_of_layers_are_part_of_the_loss(written: Any) -> None:
    module = written(GUIDE)
    inputs = keras.Input((4,))
    penalty = keras.regularizers.L2(0.5)
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_regularizer=penalty)(inputs))
    model.set_weights([np.full((4, 1), 2.0), np.zeros(1)])
    module.set_precision(model)
    step = module.train_step(
        model, module.optimizer(keras.optimizers.SGD(0.01)), keras.losses.MeanSquaredError()
    )
    result = step(np.zeros((3, 4), np.float32), np.ones((3, 1), np.float32))
    assert float(result.loss) == 1 + 0.5 * 4 * 2**2


# -- fit


class Watching(keras.callbacks.Callback):  # type: ignore[misc]
    """The scale of each batch, and whether the optimizer ran after it."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        self.native, self.did = optimizer, Expected([], [])

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        first = self.native.initial_scale
        self.did.scales.append(float(self.native.dynamic_scale if self.native.built else first))
        self.before = int(self.native.iterations) if self.native.built else 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.did.applied.append(int(self.native.iterations) > self.before)


def fitted(module: ModuleType, model: keras.Model, optimizer: Any, x: Any, y: Any) -> Expected:
    watching = Watching(optimizer)
    model.compile(optimizer, "mean_squared_error")
    model.fit(
        x.reshape(-1, LENGTH), y.reshape(-1, 4),
        batch_size=BATCH, shuffle=False, verbose=0, callbacks=[watching],
    )  # fmt: skip
    return watching.did


@pytest.mark.parametrize("name", RECIPES)
def test_fit_skips_and_scales_by_the_recipe(written: Any, name: str) -> None:
    recipe = RECIPES[name]
    module, model = written(recipe), transformer()
    module.set_precision(model)
    optimizer = module.optimizer(keras.optimizers.Adam(1e-3))
    assert fitted(module, model, optimizer, *data()) == by_the_rule(recipe)


def test_fit_and_a_loop_train_the_same(written: Any) -> None:
    weights = []
    for train in (fitted, loop):
        module, model = written(OWN_RULE), transformer()
        module.set_precision(model)
        first = model.get_weights()
        train(module, model, module.optimizer(keras.optimizers.SGD(1e-2)), *data())
        weights.append(model.get_weights())
    for by_fit, by_loop, start in zip(*weights, first, strict=True):
        np.testing.assert_allclose(
            by_fit, by_loop, rtol=0, atol=1e-3 * np.abs(by_loop - start).max()
        )


# -- dtypes


def test_layers_compute_in_what_the_recipe_says(written: Any) -> None:
    """By Paddle's O1 lists; batch normalization goes by its input, with float32 statistics."""
    module, model = written(GUIDE), transformer()
    module.set_precision(model)
    outputs = keras.Model(model.inputs[0], [layer.output for layer in model.layers[1:]])
    outputs.autocast = False
    dtypes = {
        layer.name: value.dtype.name
        for layer, value in zip(model.layers[1:], outputs(data()[0][0]), strict=True)
    }
    assert dtypes == {
        "embedding": "float32",
        "attention": "float16",
        "residual": "float32",  # of both
        "batch_norm": "float16",
        "hidden": "float16",
        "pooling": "float32",
        "gate": "float32",  # its softmax
        "gated": "float32",
        "head": "float16",
    }
    assert {value.dtype for value in model.variables} - {"int64", "uint32"} == {"float32"}


def test_layers_in_lists_dicts_and_tuples_of_a_layer_are_found(written: Any) -> None:
    module = written(GUIDE)
    inputs = keras.Input((LENGTH, WIDTH))
    model = keras.Model(inputs, Block(name="block")(inputs))
    module.set_precision(model)
    block = model.get_layer("block")
    assert block.more["norm"].compute_dtype == "float16"  # of what it returns
    attention = block.parts[0]
    computed = {type(part).__name__: part.compute_dtype for part in attention._flatten_layers()}
    assert computed.pop("Softmax") == "float32"
    assert set(computed.values()) == {"float16"}
    assert all(part.autocast for part in attention._flatten_layers())  # float32 goes no further
    values = np.ones((2, LENGTH, WIDTH), np.float32)
    assert {block.last[0].compute_dtype, block.last[0](values).dtype} == {"float16", tf.float16}
    assert ops_of(model, True, "Rsqrt", "Softmax") == {"float32"}


class Encoder(keras.layers.Layer):  # type: ignore[misc]
    """As PatchEncoder of keras.io's vision transformer: + of what two layers return."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = keras.layers.Dense(WIDTH)
        self.position_embedding = keras.layers.Embedding(LENGTH, WIDTH)
        self.norm = keras.layers.LayerNormalization()
        self.gate = keras.layers.Dense(WIDTH, activation="softmax")

    def build(self, shape: Any) -> None:
        self.projection.build(shape)
        for layer in (self.position_embedding, self.norm, self.gate):
            layer.build((*shape[:-1], WIDTH))

    def call(self, x: Any) -> Any:
        x = self.projection(x) + self.position_embedding(keras.ops.arange(LENGTH))
        return x + self.norm(x) * self.gate(x)


class Encoding(keras.Model):  # type: ignore[misc]
    """The same in a subclassed model."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.norm = Encoder(), keras.layers.LayerNormalization()
        self.dense = keras.layers.Dense(WIDTH)

    def call(self, x: Any) -> Any:
        x = self.dense(self.encoder(x))
        return x + self.norm(x)


def test_code_of_one_s_own_adds_up_what_layers_return(written: Any) -> None:
    """Two precisions would be an error of TensorFlow's."""
    model = Encoding()
    values = np.random.default_rng(0).standard_normal((BATCH, LENGTH, 4), dtype=np.float32)
    expected = model(values)
    assert expected.dtype == tf.float32
    written(GUIDE).set_precision(model)
    np.testing.assert_allclose(model(values), expected, rtol=0.02, atol=0.02)
    assert ("policy.lists", "changes") in {
        (loss.key, loss.kind) for loss in losses(GUIDE, "tensorflow")
    }


def ops_of(model: keras.Model, training: bool, *kinds: str) -> set[str]:
    """The dtypes of TensorFlow's ops of these kinds in the graph of a forward pass."""
    (taken,) = model.inputs
    function = tf.function(lambda values: model(values, training=training))
    spec = tf.TensorSpec((2, *taken.shape[1:]), taken.dtype)
    graph = function.get_concrete_function(spec).graph
    return {op.inputs[0].dtype.name for op in graph.get_operations() if op.type in kinds}


PRODUCTS = ("MatMul", "BatchMatMulV2", "Einsum")


ATTENTIONS = {
    "multi-head": lambda x: keras.layers.MultiHeadAttention(2, 8, dropout=0.1)(x, x),
    "grouped": lambda x: keras.layers.GroupQueryAttention(8, 4, 2, dropout=0.1)(x, x),
    "dot": lambda x: keras.layers.Attention(dropout=0.1)([x, x]),
    "additive": lambda x: keras.layers.AdditiveAttention(dropout=0.1)([x, x]),
}
WHOLE = ("dot", "additive")
"""Those that compute their products in one precision with their softmax."""


@pytest.mark.parametrize("training", (True, False))
@pytest.mark.parametrize("name", ATTENTIONS)
def test_ops_within_attention_follow_the_lists(written: Any, name: str, training: bool) -> None:
    """As they run: its softmax float32 where that is denied, and all of it where it is."""
    low = amp.Policy("O2", lists="paddle")
    softmax = low.replace(deny=["softmax"])
    attention = low.replace(deny=["scaled_dot_product_attention", "multi_head_attention"])
    found = {}
    for policy in (low, softmax, attention):
        inputs = keras.Input((LENGTH, WIDTH))
        model = keras.Model(inputs, ATTENTIONS[name](inputs))
        written(amp.Recipe(policy)).set_precision(model)
        found[policy] = [ops_of(model, training, *kinds) for kinds in (["Softmax"], PRODUCTS)]
    assert found[low][1] == {"float16"}
    assert found[softmax] == [{"float32"}, {"float32" if name in WHOLE else "float16"}]
    assert found[attention] == [{"float32"}, {"float32"}]


def test_batch_normalization_is_computed_in_float32(written: Any) -> None:
    """By Keras itself; so the fidelity report says it."""
    recipe = amp.Recipe(amp.Policy("O2", lists="paddle", allow=["batch_norm"]))
    inputs = keras.Input((WIDTH,))
    model = keras.Model(inputs, keras.layers.BatchNormalization()(inputs))
    written(recipe).set_precision(model)
    assert ops_of(model, True, "Mean") == ops_of(model, False, "Rsqrt") == {"float32"}
    assert model(np.ones((2, WIDTH), np.float32)).dtype == tf.float16
    (row,) = [row for row in fidelity(recipe, "tensorflow").ops if row.op == "batch_norm"]
    assert (row.recipe, row.code) == ("float16", "float32")


def test_a_model_that_is_not_built_is_an_error(written: Any) -> None:
    """Layers without weights would be taken for those that have none."""
    with pytest.raises(ValueError, match="build the model first"):
        written(GUIDE).set_precision(keras.Sequential([keras.layers.Dense(4)]))


def warned(module: ModuleType, model: keras.Model) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        module.set_precision(model)
    return [str(each.message) for each in found]


def test_denied_functions_in_layers_of_one_s_own_are_told_with_the_line(written: Any) -> None:
    module = written(GUIDE)
    about_softmax, about_sum = sorted(warned(module, transformer(Pooling)))
    assert about_softmax == (
        "Pooling runs softmax in low precision, the recipe in float32; "
        'add x = keras.ops.cast(x, "float32") before keras.ops.softmax(x), and cast back after it'
    )
    assert "Pooling runs sum" in about_sum
    assert warned(module, transformer(CastingPooling)) == []


def test_denied_functions_between_layers_are_told(written: Any) -> None:
    module = written(GUIDE)
    inputs = keras.Input((4,))
    x = keras.layers.Dense(4)(inputs)
    x = keras.layers.Lambda(lambda x: keras.ops.exp(x))(x)
    model = keras.Model(inputs, keras.ops.log_softmax(keras.ops.log_softmax(x)))
    told = warned(module, model)
    assert [message.split(" in low")[0] for message in sorted(told)] == [
        "Functional runs log_softmax",
        "Lambda runs exp",
    ]
    inputs = keras.Input((4,))
    x = keras.ops.cast(keras.layers.Dense(4)(inputs), "float32")
    assert warned(module, keras.Model(inputs, keras.ops.log_softmax(x))) == []


# -- clipping


@pytest.mark.parametrize(
    "clipping, keras_name",
    (
        ("clip_norm", "global_clipnorm"),
        ("clip_each_norm", "clipnorm"),
        ("clip_value", "clipvalue"),
    ),
)
def test_what_overflows_is_skipped_before_it_is_clipped(
    written: Any, clipping: str, keras_name: str
) -> None:
    """Keras' optimizer clips unscaled gradients; inf would become a number by its value."""
    limit: dict[str, Any] = {clipping: 0.25}
    recipe = GUIDE.replace(**limit)
    module, model = written(recipe), transformer()
    module.set_precision(model)
    optimizer = module.optimizer(keras.optimizers.Adam(1e-3))
    assert getattr(optimizer.inner_optimizer, keras_name) == 0.25
    assert fitted(module, model, optimizer, *data()) == by_the_rule(recipe)


def test_an_embedding_s_gradient_is_clipped_by_its_repeated_rows(written: Any) -> None:
    """In Keras: rows (3, 0) and (3, 0) are one of (6, 0), whose norm is not that of both."""
    recipe = GUIDE.replace(clip_each_norm=1.0)
    optimizer = written(recipe).optimizer(keras.optimizers.SGD(1.0))
    weights = keras.Variable(np.zeros((4, 2), np.float32))
    optimizer.build([weights])
    rows = 1024.0 * tf.constant([[3.0, 0.0], [3.0, 0.0]])
    gradient = tf.IndexedSlices(rows, tf.constant([1, 1]), tf.constant([4, 2]))
    optimizer.apply([gradient], [weights])
    moved = float(np.linalg.norm(weights.numpy()))
    assert moved == pytest.approx(2**0.5)  # not 1.0
    assert [loss.key for loss in losses(recipe, "tensorflow")][-1] == "step.clip_each_norm"


# -- with ampbridge


@pytest.mark.parametrize("clipping", ({}, {"clip_each_norm": 0.25}))
def test_with_ampbridge_fit_follows_the_recipe_too(written: Any, clipping: dict[str, Any]) -> None:
    """The scales and skips of the rule, and the weights of its own step; attention without sparse rows."""
    recipe = OWN_RULE.replace(**clipping)
    module = written(recipe, native=False)
    inputs = keras.Input((WIDTH,))
    hidden = keras.layers.Dense(WIDTH, activation="softmax")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.BatchNormalization()(hidden)))
    first, moved = model.get_weights(), []
    random = np.random.default_rng(0)
    x = random.standard_normal((BATCHES, BATCH, WIDTH), dtype=np.float32)
    _, y = data()
    module.compile_model(model, keras.optimizers.SGD(0.1), "mean_squared_error")
    watching = Watching(model.optimizer)
    model.fit(
        x.reshape(-1, WIDTH), y.reshape(-1, 4),
        batch_size=BATCH, shuffle=False, verbose=0, callbacks=[watching],
    )  # fmt: skip
    assert watching.did == by_the_rule(recipe)
    moved.append([a - b for a, b in zip(model.get_weights(), first, strict=True)])
    amp.undecorate(model)
    model.set_weights(first)
    mean_squared_error = keras.losses.MeanSquaredError()
    step = module.train_step(
        lambda m, x, y: mean_squared_error(y, m(x, training=True)), model, keras.optimizers.SGD(0.1)
    )
    for inputs, targets in zip(x, y, strict=True):
        step(inputs, targets)
    moved.append([a - b for a, b in zip(model.get_weights(), first, strict=True)])
    for by_fit, by_step in zip(*moved, strict=True):
        np.testing.assert_allclose(by_fit, by_step, rtol=0, atol=0.01 * np.abs(by_step).max())


def test_where_fit_cannot_follow_there_is_nothing_for_it(written: Any) -> None:
    """An overflow drops a micro-batch under fit; this recipe drops the step."""
    assert not hasattr(written(ACCUMULATING, native=False), "compile_model")
    drops = ACCUMULATING.replace(on_overflow="drop_microbatch")
    module, model = written(drops, native=False), transformer()
    module.compile_model(model, keras.optimizers.SGD(0.1), "mean_squared_error")
    assert model.optimizer.inner_optimizer.gradient_accumulation_steps == 2


def test_an_optimizer_that_accumulates_by_itself_is_refused(written: Any) -> None:
    """It would accumulate twice."""
    module = written(ACCUMULATING)
    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="leave out gradient_accumulation_steps"):
        module.optimizer(inner)


@pytest.mark.parametrize("recipe", (GUIDE, OWN_RULE), ids=("keras", "own_rule"))
def test_an_optimizer_that_scales_the_loss_already_does_so_no_more(
    written: Any, recipe: Any
) -> None:
    """Its gradients would be divided by two scales: clipping and epsilon would see others."""
    sgd = keras.optimizers.SGD(0.1)
    optimizer = written(recipe).optimizer(keras.optimizers.LossScaleOptimizer(sgd))
    assert optimizer.inner_optimizer is sgd
    by_name = written(recipe).optimizer("adam")
    assert type(by_name.inner_optimizer) is keras.optimizers.Adam


# -- saving and loading


@pytest.mark.parametrize("name", RECIPES)
def test_a_saved_model_goes_on_as_one_that_was_not(written: Any, name: str, tmp_path: Path) -> None:
    module, model = written(RECIPES[name]), transformer()
    module.set_precision(model)
    optimizer = module.optimizer(keras.optimizers.Adam(1e-3))
    fitted(module, model, optimizer, *data())
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    module.set_precision(again)
    assert again.optimizer is not optimizer
    assert type(again.optimizer) is type(optimizer)
    wanted = [value.numpy() for value in optimizer.variables]
    for value, expected in zip(again.optimizer.variables, wanted, strict=True):
        np.testing.assert_array_equal(value.numpy(), expected)
    more = data(spikes=(1, 7), seed=1)
    goes_on, _ = loop(module, again, again.optimizer, *more)
    assert goes_on == loop(module, model, optimizer, *more)[0]
    assert goes_on.scales[0] == (by_the_rule(RECIPES[name]).scales[-1])
    for value, wanted in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(value, wanted)
