"""At O2 a low layer casts the inputs of the model; whatever else reads them sees float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

import ampbridge as amp  # noqa: E402

LAYERS = keras.layers
BEYOND = np.array([[70001.5, 70002.25], [70000.5, 70003.75]], np.float32)
"""Beyond float16, and in steps that neither low dtype has. 70000 less, both are exact in float16."""
EXACT = BEYOND - np.float32(70000)
THIRDS = (np.arange(12, dtype=np.float32).reshape(4, 3) - 5) / 3

low_dtypes = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


def o2(dtype: str = "float16", **settings: Any) -> amp.Policy:
    return amp.Policy("O2", dtype, execution="native", **settings)


class Centred(LAYERS.Layer):
    """Subtracts what makes the inputs small."""

    def call(self, x: Any) -> Any:
        return x - 70000.0


class Scaled(LAYERS.Layer):
    """A weight of its own, and an op that is in no list."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="random_normal")

    def call(self, x: Any) -> Any:
        return x * self.scale


class Around(LAYERS.Layer):
    """A layer of the user's own that hands its input to another one."""

    def __init__(self, part: LAYERS.Layer) -> None:
        super().__init__()
        self.part = part

    def call(self, x: Any) -> Any:
        return self.part(x)


class Subclassed(keras.Model):
    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.parts = list(parts)

    def call(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x


def sequential(*parts: Any) -> keras.Model:
    return keras.Sequential([keras.Input((2,)), *parts])


def functional(*parts: Any) -> keras.Model:
    x = inputs = keras.Input((2,))
    for part in parts:
        x = part(x)
    return keras.Model(inputs, x)


def nested(*parts: Any) -> keras.Model:
    return functional(sequential(*parts[:1]), *parts[1:])


MODELS: dict[str, Callable[..., keras.Model]] = {
    "sequential": sequential,
    "functional": functional,
    "nested": nested,
    "subclassed": Subclassed,
}
FULL: dict[str, Callable[[], Any]] = {
    "kept": Centred,
    "autocast=False": lambda: Centred(autocast=False),
    "preprocessing": lambda: LAYERS.Rescaling(1.0, -70000.0),
    "kept inside": lambda: Around(Centred()),
    "autocast=False inside": lambda: Around(Centred(autocast=False)),
}


@low_dtypes
@pytest.mark.parametrize("first", FULL)
@pytest.mark.parametrize("kind", MODELS)
def test_a_float32_first_layer_sees_the_inputs_as_they_are(
    kind: str, first: str, dtype: str
) -> None:
    model = MODELS[kind](FULL[first](), LAYERS.Dense(2, kernel_initializer="identity"))
    model(BEYOND)
    amp.decorate(model, policy=o2(dtype, keep=("Centred",) if "kept" in first else ()))
    expected = tf.cast(tf.cast(EXACT, dtype), tf.float32)
    for x in (BEYOND, tf.constant(BEYOND)):
        np.testing.assert_array_equal(model(x), expected)
        np.testing.assert_array_equal(tf.function(model)(x), expected)
    np.testing.assert_array_equal(model.predict(BEYOND, verbose=0), expected)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_step_s_float32_first_layer_sees_the_inputs_as_they_are(compiled: bool) -> None:
    model = functional(Centred(autocast=False), LAYERS.Dense(2, kernel_initializer="identity"))

    def loss_fn(model: Any, x: Any) -> Any:
        y = model(x)
        return tf.reduce_mean(y), y

    step = amp.train_step(loss_fn, model, keras.optimizers.SGD(0.0), policy=o2(), compile=compiled)
    np.testing.assert_array_equal(step(BEYOND).aux, EXACT)


@pytest.mark.parametrize("first", [LAYERS.BatchNormalization, LAYERS.LayerNormalization])
def test_a_first_normalization_sees_the_inputs_as_they_are(first: Any) -> None:
    keras.utils.set_random_seed(0)
    model = functional(first(), LAYERS.Dense(2, kernel_initializer="identity"))
    expected = model(BEYOND, training=True)
    amp.decorate(model, policy=o2())
    np.testing.assert_allclose(model(BEYOND, training=True), expected, atol=2e-3)


class Own(keras.Model):
    """Functions of its inputs, and a target that it compares its prediction with."""

    def __init__(self) -> None:
        super().__init__()
        self.head = LAYERS.Dense(2, kernel_initializer="zeros")

    def call(self, x: Any, target: Any) -> Any:
        prediction = self.head(keras.ops.subtract(x, 70000.0))
        return {"difference": target - prediction, "inputs": x}


@low_dtypes
def test_functions_of_a_model_s_call_see_its_inputs_as_they_are(dtype: str) -> None:
    model = Own()
    model(BEYOND, BEYOND)
    amp.decorate(model, policy=o2(dtype))
    for call in (model, tf.function(model)):
        found = call(tf.constant(BEYOND), target=tf.constant(BEYOND))
        np.testing.assert_array_equal(found["difference"], BEYOND)
        np.testing.assert_array_equal(found["inputs"], BEYOND)


@low_dtypes
@pytest.mark.parametrize("first", [Scaled, lambda: Around(Scaled())])
def test_low_first_layers_compute_as_under_keras_own_mixed_policy(
    first: Callable[[], Any], dtype: str
) -> None:
    """To the bit."""

    def made() -> keras.Model:
        keras.utils.set_random_seed(0)
        parts = [LAYERS.Concatenate()([first()(x), first()(t)]), first()(x)]
        return keras.Model([x, t], LAYERS.Dense(1)(LAYERS.Concatenate()(parts)))

    x, t = keras.Input((3,)), keras.Input((3,))
    keras.config.set_dtype_policy(f"mixed_{dtype}")
    try:
        theirs = made()
    finally:
        keras.config.set_dtype_policy("float32")
    ours = made()
    amp.decorate(ours, policy=o2(dtype))
    given = [THIRDS, THIRDS[::-1] * 7]
    np.testing.assert_array_equal(ours(given), tf.cast(theirs(given), tf.float32))


def test_a_layer_that_is_made_while_decorated_hands_inputs_on_too() -> None:
    class Lazy(LAYERS.Layer):
        def build(self, shape: Any) -> None:
            self.part = LAYERS.Rescaling(1.0, -70000.0)

        def call(self, x: Any) -> Any:
            return self.part(x)

    model = Subclassed(Lazy(), LAYERS.Dense(2, kernel_initializer="identity"))
    amp.decorate(model, policy=o2())
    for _ in range(2):
        np.testing.assert_array_equal(model(BEYOND), EXACT)


def test_masks_stay_on_inputs_that_a_layer_casts() -> None:
    class Seen(LAYERS.Layer):
        supports_masking = True

        def call(self, x: Any) -> Any:
            self.mask, self.dtype_seen = x._keras_mask, x.dtype
            return x

    model, x = Subclassed(Seen()), tf.constant(BEYOND)
    model.supports_masking = model.parts[0].supports_masking = True
    x._keras_mask = tf.constant([True, False])
    model(x)
    amp.decorate(model, policy=o2())
    model(x)
    assert model.parts[0].mask is x._keras_mask
    assert model.parts[0].dtype_seen == tf.float16


# -- variables as inputs


class Queries(LAYERS.Layer):
    """Learned queries, which it hands to a layer as they are."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part

    def build(self, shape: Any) -> None:
        self.queries = self.add_weight(shape=(1, 4, 3), initializer="random_normal")

    def call(self, x: Any) -> Any:
        return x + keras.ops.mean(self.part(self.queries), axis=1)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize(
    "part",
    [
        lambda: LAYERS.Dense(3),
        lambda: LAYERS.LayerNormalization(),
        lambda: LAYERS.Activation("gelu"),
        lambda: LAYERS.GRU(3, return_sequences=True),
    ],
)
def test_a_variable_may_be_the_input_of_a_layer(part: Any, level: str, compiled: bool) -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), Queries(part())])
    queries = model.layers[0].queries
    before = queries.numpy()

    def loss_fn(model: Any, x: Any) -> Any:
        return tf.reduce_mean(tf.square(model(x) - 1.0))

    with tf.GradientTape() as tape:
        loss = loss_fn(model, THIRDS)
    expected = before - 0.5 * tape.gradient(loss, queries.value)
    step = amp.train_step(
        loss_fn,
        model,
        keras.optimizers.SGD(0.5),
        policy=amp.Policy(level, "bfloat16", execution="native"),
        compile=compiled,
    )
    step(THIRDS)
    np.testing.assert_allclose(queries.numpy(), expected, rtol=0.1, atol=0.02)
    assert not np.array_equal(queries.numpy(), before)


@pytest.mark.parametrize("keep", [(), ("rnn",)])
@pytest.mark.parametrize("cell", [LAYERS.LSTM, LAYERS.GRU, LAYERS.SimpleRNN])
def test_a_stateful_recurrent_layer_goes_on_from_its_state(cell: Any, keep: Any) -> None:
    keras.utils.set_random_seed(0)
    inputs = keras.Input(batch_shape=(4, 2, 3))
    model = keras.Model(inputs, cell(3, stateful=True, name="rnn")(inputs))
    x = np.stack([THIRDS, THIRDS[::-1]], axis=1)
    expected = [model(x), model(x)]
    model.get_layer("rnn").reset_state()
    amp.decorate(model, policy=o2("bfloat16", keep=keep))
    for exact in expected:
        np.testing.assert_allclose(model(x), exact, atol=0.01)
    assert not np.allclose(*expected, atol=0.01)
