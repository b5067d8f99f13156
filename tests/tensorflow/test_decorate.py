"""Models fitted to a policy: what their layers say, what runs, and that it can be taken back."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import recorder  # noqa: E402
import tensorflow as tf  # noqa: E402
from tensorflow.python import pywrap_tfe  # noqa: E402

import ampbridge as amp  # noqa: E402
from ampbridge_tensorflow.backend import TensorflowBackend  # noqa: E402
from ampbridge_tensorflow.model import fitted  # noqa: E402

BACKEND = TensorflowBackend()
LAYERS = keras.layers
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(6, 8)).astype(np.float32)
SEQUENCES = RANDOM.normal(size=(2, 5, 8)).astype(np.float32)

# Of NumPy, about variables that Keras itself hands to it.
KERAS_ITSELF_WARNS = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)

# Native, so that what runs is seen as it is: float16 may be simulated where that is faster.
O1, O2 = (amp.Policy(level, "bfloat16", execution="native") for level in ("O1", "O2"))
O2_FLOAT16 = amp.Policy("O2", "float16", execution="native")
LOW = "bfloat16"


def perceptron() -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((8,)),
            LAYERS.Dense(8, "relu", name="first"),
            LAYERS.LayerNormalization(name="norm"),
            LAYERS.Dense(3, "softmax", name="head"),
        ]
    )


class Attending(keras.Model):
    """Subclassed and nested: attention, lists of layers, a Sequential, a raw op between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = LAYERS.MultiHeadAttention(2, 4, name="mha")
        self.blocks = [LAYERS.Dense(8, name="any"), LAYERS.Dense(8)]
        self.towers = {"left": keras.Sequential([LAYERS.Dense(8, name="deep")])}
        self._head = LAYERS.Dense(3)

    def call(self, x: Any) -> Any:
        x = x + self.attention(x, x)
        for block in self.blocks:
            x = tf.exp(-tf.square(x)) + block(x)
        return self._head(self.towers["left"](x))


def functional() -> keras.Model:
    inputs = keras.Input((8,), name="x")
    x = LAYERS.Dense(8, name="first")(inputs)
    x = LAYERS.BatchNormalization(name="norm")(x)
    x = keras.ops.exp(-keras.ops.square(x)) + LAYERS.Dense(8, name="second")(x)
    return keras.Model(inputs, LAYERS.Dense(3, name="head")(x))


class Module(tf.Module):
    """Variables, a list of them, a Keras layer and a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(RANDOM.normal(size=(8, 8)).astype(np.float32))
        self.biases = [tf.Variable(RANDOM.normal(size=8).astype(np.float32))]
        self.scale = keras.Variable(np.full(8, 1.001, np.float32))
        self.dense = LAYERS.Dense(3)
        self.dense.build((None, 8))
        self.part = Part()

    def __call__(self, x: Any) -> Any:
        x = self.part(tf.matmul(x, self.w) + self.biases[0]) * self.scale
        return self.dense(tf.nn.relu(x))


class Part(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(RANDOM.normal(size=(8, 8)).astype(np.float32))

    def __call__(self, x: Any) -> Any:
        return tf.matmul(x, self.w)


MODELS: dict[str, tuple[Callable[[], Any], np.ndarray]] = {
    "Sequential": (perceptron, X),
    "functional": (functional, X),
    "subclassed": (Attending, SEQUENCES),
    "tf.Module": (Module, X),
}


def made(kind: str) -> tuple[Any, tf.Tensor]:
    """A built model and its input."""
    make, x = MODELS[kind]
    model = make()
    model(tf.constant(x))
    return model, tf.constant(x)


def variables(model: Any) -> list[Any]:
    parts = (part.layer for part in BACKEND.layers(model))
    held = [v for part in parts for v in getattr(part, "variables", ())]
    return list({id(v): v for v in held}.values())


def loss_and_gradients(model: Any, x: Any) -> list[np.ndarray]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x)))
    natives = [getattr(v, "value", v) for v in variables(model)]
    natives = [v for v in natives if isinstance(v, tf.Variable) and v.trainable]
    return [np.array(g) for g in (loss, *tape.gradient(loss, natives))]


def policies(model: Any) -> dict[str, str]:
    parts = BACKEND.layers(model)
    return {p.name: p.layer.dtype_policy.name for p in parts if isinstance(p.layer, keras.Layer)}


def framework_state() -> list[Any]:
    """What is replaced while a model is decorated or a region is open."""
    owners = (keras.Layer, keras.Operation, Module, Part)
    calls = [vars(owner)["__call__"] for owner in owners]
    configurations = [keras.Layer.get_config, keras.Model.get_compile_config]
    training = [keras.Model.compile, keras.optimizers.Optimizer.apply]
    entries = [pywrap_tfe.TFE_Py_FastPathExecute, *calls, *configurations, *training]
    return [*entries, fitted.trace_key(), fitted.standing()]


UNTOUCHED = framework_state()


@pytest.fixture(autouse=True)
def framework_as_it_was() -> Iterator[None]:
    """Whatever a test decorates, TensorFlow and Keras are as they were once it is gone."""
    keras.utils.set_random_seed(0)
    yield
    if framework_state() != UNTOUCHED:
        gc.collect()
    assert framework_state() == UNTOUCHED


# -- names


def test_layers_have_the_names_that_their_attributes_or_keras_give_them() -> None:
    model, _ = made("subclassed")
    attention = [
        "attention.query",
        "attention.key",
        "attention.value",
        "attention.attention_output",
    ]
    names = [part.name for part in BACKEND.layers(model)]
    assert names[:2] == ["", "attention"]
    assert set(attention) <= set(names)
    assert names[-5:] == ["blocks.0", "blocks.1", "towers.left", "towers.left.deep", "_head"]
    assert [part.name for part in BACKEND.layers(perceptron())] == ["", "first", "norm", "head"]
    assert [part.name for part in BACKEND.layers(functional())][1:3] == ["first", "norm"]


def test_modules_tell_their_variables_and_parts() -> None:
    found = {part.name: part for part in BACKEND.layers(Module())}
    assert [(name, part.kind) for name, part in found.items()] == [
        ("", "Module"),
        ("dense", "Dense"),
        ("part", "Part"),
    ]
    assert found[""].shapes == {"w": (8, 8), "biases.0": (8,), "scale": (8,)}
    assert found["dense"].shapes == {"kernel": (8, 3), "bias": (3,)}


def test_a_shared_layer_is_listed_once() -> None:
    shared = LAYERS.Dense(8, name="shared")
    model = keras.Sequential([keras.Input((8,)), shared, keras.Sequential([shared])])
    assert [part.name for part in BACKEND.layers(model)].count("shared") == 1
    assert len(BACKEND.layers(model)) == 3


# -- dtype policies


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_layers_say_what_tensorflow_s_guide_says(dtype: str) -> None:
    model = perceptron()
    amp.decorate(model, policy=amp.Policy("O2", dtype, execution="native"))
    mixed = f"mixed_{dtype}"
    assert policies(model) == {"": mixed, "first": mixed, "norm": "float32", "head": mixed}
    first = model.get_layer("first")
    assert (first.compute_dtype, first.variable_dtype) == (dtype, "float32")
    assert first.dtype_policy == keras.DTypePolicy(mixed)
    assert {v.dtype for v in model.variables} == {"float32"}
    assert first(X).dtype == tf.float32  # as output_dtype says, also called by itself
    amp.undecorate(model)


def test_the_parts_of_attention_are_decorated_and_kept_with_it() -> None:
    model, _ = made("subclassed")
    amp.decorate(model, policy=O2)
    assert set(policies(model).values()) == {f"mixed_{LOW}"}
    amp.decorate(model, policy=O2.replace(keep=["attention"]))
    kept = {p for name, p in policies(model).items() if name.startswith("attention")}
    assert (kept, policies(model)["_head"]) == ({"float32"}, f"mixed_{LOW}")
    amp.undecorate(model)


class Coding(LAYERS.Layer):
    """Is called by its methods, as the encoder and the decoder of a VAE are."""

    def __init__(self) -> None:
        super().__init__(name="coder")
        self.inner = LAYERS.Dense(8)

    def build(self, shape: Any) -> None:
        self.inner.build(shape)

    def encode(self, x: Any) -> Any:
        return self.inner(x)


class CallingAMethod(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.coder, self.head = Coding(), LAYERS.Dense(3)
        self.log: list[str] = []

    def build(self, shape: Any) -> None:
        self.coder.build(shape)
        self.head.build(shape)

    def call(self, x: Any) -> Any:
        code = self.coder.encode(x)
        self.log += [code.dtype.name, (output := self.head(code)).dtype.name]
        return output


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("policy", [O1, O2], ids=str)
def test_layers_of_a_kept_one_are_float32_by_whatever_method_they_are_reached(
    policy: amp.Policy, compiled: bool
) -> None:
    model = CallingAMethod()
    model.build(X.shape)
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    def loss(model: Any, x: Any) -> Any:
        return tf.reduce_mean(model(x) ** 2)

    kept = policy.replace(keep=["coder"])
    step = amp.train_step(loss, model, optimizer, policy=kept, compile=compiled)
    model.log.clear()
    step(X)
    assert model.log[:2] == ["float32", LOW]
    amp.undecorate(model)
    model.log.clear()
    with amp.autocast(policy, backend="tensorflow"):
        model(X)
    assert model.log == [LOW, LOW]


@KERAS_ITSELF_WARNS
def test_a_precision_that_somebody_chose_is_left_alone() -> None:
    given = keras.dtype_policies.DTypePolicyMap("float32")
    model = keras.Sequential(
        [
            keras.Input((8,)),
            LAYERS.Rescaling(2.0, name="scaled"),
            LAYERS.Dense(8, dtype="mixed_float16", name="mixed"),
            LAYERS.Dense(8, name="quantized"),
            LAYERS.Dense(8, dtype="float64", name="double"),
            LAYERS.Dense(8, dtype=given, name="mapped"),
        ]
    )
    model.get_layer("quantized").quantize("int8")
    before = {layer: layer.dtype_policy for layer in model.layers}
    amp.decorate(model, policy=O2)
    assert {layer.name for layer in model.layers if layer.dtype_policy is before[layer]} == {
        *("scaled", "mixed", "quantized", "double"),
    }
    amp.undecorate(model)
    assert all(layer.dtype_policy is before[layer] for layer in model.layers)
    assert len(given) == 0  # the map is shared, and not written to


# -- what runs


@pytest.mark.parametrize("mode", recorder.RECORDERS)
@pytest.mark.parametrize("kind", MODELS)
def test_ops_follow_the_lists(kind: str, mode: str) -> None:
    model, x = made(kind)
    with recorder.below_the_adapter() as seen:  # beneath what stands while a model is decorated
        amp.decorate(model, policy=O2)
        seen.clear()
        outputs = model(x)
    if mode == "tf.function":
        outputs, seen[:] = recorder.traced(model, x)
    ran = {op: {dtype for name, dtype in seen if name == op} for op, _ in seen}
    amp.undecorate(model)
    products = [ran.get(op, set()) for op in ("MatMul", "BatchMatMulV2", "Einsum")]
    assert set().union(*products) == {LOW}
    for denied in ("Exp", "Softmax", "Mean", "SquaredDifference"):
        assert ran.get(denied, {"float32"}) == {"float32"}
    assert outputs.dtype == tf.float32


def test_outputs_and_gradients_are_those_of_casts_by_hand() -> None:
    """Inputs and weights rounded, matmul and bias low, normalization and softmax float32: to the last bit."""
    model = perceptron()
    first, norm, head = model.layers
    x = tf.constant(X)

    def low(value: Any) -> tf.Tensor:
        return tf.cast(value, LOW)

    def by_hand() -> tf.Tensor:
        h = tf.nn.relu(tf.nn.bias_add(tf.matmul(low(x), low(first.kernel)), low(first.bias)))
        h = low(norm(tf.cast(h, tf.float32)))
        y = tf.nn.bias_add(tf.matmul(h, low(head.kernel)), low(head.bias))
        return tf.nn.softmax(tf.cast(y, tf.float32))

    def run(function: Callable[[], Any]) -> list[np.ndarray]:
        with tf.GradientTape() as tape:
            outputs = function()
            loss = tf.reduce_mean(tf.square(outputs))
        weights = [v.value for v in (first.kernel, norm.gamma, norm.beta, head.kernel)]
        return [np.array(v) for v in (outputs, *tape.gradient(loss, weights))]

    expected = run(by_hand)
    amp.decorate(model, policy=O2)
    found = run(lambda: model(x))
    amp.undecorate(model)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_layers_and_nested_models_take_values_as_they_come() -> None:
    """Keras' own mixed layers round float32 inputs; its functional models cast low ones up."""
    values: dict[str, Any] = {}

    def remembered(name: str) -> keras.Layer:
        return LAYERS.Lambda(lambda value: values.update({name: value}) or value, name=name)

    takes_low = keras.Sequential([keras.Input((8,)), remembered("low"), LAYERS.Dense(3)])
    takes_full = keras.Sequential([remembered("full"), LAYERS.Dense(3)])  # built when decorated
    models = (
        keras.Sequential([keras.Input((8,)), LAYERS.Dense(8), takes_low]),
        keras.Sequential([LAYERS.Dense(8), LAYERS.Softmax(), takes_full]),
    )
    for model in models:
        amp.decorate(model, policy=O2)
        model(tf.constant(X))
    dtypes, full = {name: value.dtype.name for name, value in values.items()}, values["full"]
    for model in models:
        amp.undecorate(model)
    assert dtypes == {"low": LOW, "full": "float32"}
    assert not np.array_equal(full, tf.cast(tf.cast(full, LOW), tf.float32))


def test_a_layer_that_is_denied_as_a_whole_is_float32_inside() -> None:
    model = keras.Sequential([keras.Input((5, 8)), LAYERS.GRU(4), LAYERS.Dense(3)])
    with recorder.below_the_adapter() as seen:
        amp.decorate(model, policy=O2.replace(deny=["gru"]))
        seen.clear()
        model(SEQUENCES)
    amp.undecorate(model)
    *inside, last = [dtype for op, dtype in seen if op == "MatMul"]
    assert (set(inside), last) == ({"float32"}, LOW)


def test_variables_of_no_layer_are_read_low_and_stay_float32() -> None:
    module = tf.Module()
    module.v = tf.Variable([1.001, 2.001])
    module.table = tf.Variable([[1.001], [2.001]])
    module.keras_variable = keras.Variable([1.001, 2.001])
    reads: dict[str, Callable[[], Any]] = {
        "operator": lambda: module.v * 2.0,
        "raw op": lambda: tf.nn.relu(module.v),
        "in a list": lambda: tf.concat([module.v, module.v], 0),
        "beside a low value": lambda: tf.add(tf.constant([1.0, 1.0], LOW), module.v),
        "Keras variable": lambda: tf.constant([1.0, 1.0], LOW) * module.keras_variable,
        "slice": lambda: module.v[:1],
        "read_value": lambda: module.v.read_value(),
        "gather": lambda: tf.gather(module.table, [0]),
        "gather_nd": lambda: tf.gather_nd(module.table, [[0, 0]]),
        "embedding": lambda: tf.nn.embedding_lookup(module.table, [1]),
    }

    def dtypes() -> dict[str, str]:
        return {name: read().dtype.name for name, read in reads.items()}

    amp.decorate(module, policy=O2)
    assert reads["operator"]().dtype == tf.float32  # nothing is cast outside of regions
    with amp.autocast(O2, backend="tensorflow"):
        assert {name for name, dtype in dtypes().items() if dtype != LOW} == set()
        traced: dict[str, str] = {}
        tf.function(lambda: traced.update(dtypes()))()
        assert {name for name, dtype in traced.items() if dtype != LOW} == set()
        assert tf.convert_to_tensor(module.v, tf.float32).dtype == tf.float32
        np.testing.assert_array_equal(tf.exp(module.v), tf.exp([1.0, 2.0]))  # rounded
        module.v.assign_add([1e-3, 1e-3])
    np.testing.assert_array_equal(module.v, np.float32([1.001, 2.001]) + np.float32(1e-3))
    amp.undecorate(module)


class Rotating(LAYERS.Layer):
    """With a table, made as Keras has buffers, and a parameter."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(
            name="table",
            shape=(8,),
            initializer=keras.initializers.Constant(1.001),
            trainable=False,
        )
        self.factor = self.add_weight(
            name="factor", shape=(8,), initializer=keras.initializers.Constant(1.001)
        )

    def call(self, x: Any) -> Any:
        return x + tf.cast(self.table, "float32"), tf.cast(self.factor, "float32")


class Around(LAYERS.Layer):
    """Builds its part by itself, as Keras' attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Rotating()

    def build(self, shape: Any) -> None:
        self.inner.build(shape)

    def call(self, x: Any) -> Any:
        return self.inner(x)


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("make", [Rotating, Around])
def test_buffers_are_read_in_float32(make: Callable[[], Any], built: bool) -> None:
    layer = make()
    model = keras.Sequential([layer])
    if built:
        model(X)
    amp.decorate(model, policy=O2)
    table, factor = model(0 * X)
    assert float(table[0, 0]) == np.float32(1.001)
    assert float(factor[0]) == tf.cast(1.001, LOW)
    amp.undecorate(model)
    inner = getattr(layer, "inner", layer)
    with keras.src.backend.AutocastScope("bfloat16"):
        assert inner.table.value.dtype == tf.bfloat16


def test_a_frozen_layer_s_parameters_are_no_buffers() -> None:
    model = keras.Sequential([keras.Input((8,)), LAYERS.Dense(3, trainable=False, name="frozen")])
    amp.decorate(model, policy=O2)
    assert len(fitted.low_variables(model)) == 2


def test_normalizations_of_others_are_told_by_name_and_vectors() -> None:
    class LlamaRMSNorm(Rotating): ...

    class NormalizedDense(LAYERS.Dense): ...

    model = keras.Sequential([NormalizedDense(8), LlamaRMSNorm()])
    model(X)
    amp.decorate(model, policy=O2)
    dense, norm = model.layers
    assert float(model(X)[1][0]) == np.float32(1.001)
    assert (dense.compute_dtype, norm.compute_dtype) == (LOW, "float32")


def test_a_parameter_that_a_kept_layer_shares_stays_float32() -> None:
    class Tied(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.dense = LAYERS.Embedding(9, 8), LAYERS.Dense(8)

        def call(self, tokens: Any) -> Any:
            y = self.dense(self.embedding(tokens))
            return {"y": y, "read as": self.embedding.embeddings.value.dtype.name}

    model, tokens = Tied(), tf.constant([[1, 2]])
    model(tokens)
    read = {}
    for keep in ((), ("embedding",)):
        amp.decorate(model, policy=O2.replace(keep=keep))
        read[keep] = model(tokens)["read as"]
        amp.undecorate(model)
    assert read == {(): LOW, ("embedding",): "float32"}


def test_gradients_outside_of_a_region_are_summed_in_float32() -> None:
    """TensorFlow's bfloat16 sum of 4096 ones is 256."""
    ones = tf.ones((4096, 3), tf.bfloat16)
    theirs = tf.cast(tf.raw_ops.BiasAddGrad(out_backprop=ones), tf.float32).numpy()
    assert (theirs < 0.2 * 4096.0).all()  # how much less is a matter of the CPU's vectors
    model = keras.Sequential([keras.Input((8,)), LAYERS.Dense(3)])
    amp.decorate(model, policy=O2)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(np.ones((4096, 8), np.float32)))
    (gradient,) = tape.gradient(loss, [model.layers[0].bias.value])
    np.testing.assert_array_equal(gradient, [4096.0] * 3)
    amp.undecorate(model)


# -- outputs


@dataclasses.dataclass
class Pair:
    low: Any
    others: Any


@pytest.mark.parametrize("output_dtype", ["float32", "float16"])
@pytest.mark.parametrize("policy", [O1, O2], ids=["O1", "O2"])
def test_outputs_in_containers_come_in_output_dtype(policy: amp.Policy, output_dtype: str) -> None:
    class Nested(tf.Module):
        def __call__(self, x: Any) -> Any:
            low = tf.matmul(x, x, transpose_b=True)
            others = [tf.constant(1), tf.constant(1.0, tf.float64), "text", None]
            return {"pair": Pair(low, others), "tuple": (low, tf.exp(low))}

    model = Nested()
    amp.decorate(model, policy=policy.replace(output_dtype=output_dtype))
    found = model(X)
    amp.undecorate(model)
    assert {found["pair"].low.dtype, *(v.dtype for v in found["tuple"])} == {
        tf.as_dtype(output_dtype)
    }
    integer, double, *plain = found["pair"].others
    assert (integer.dtype, double.dtype, plain) == (tf.int32, tf.float64, ["text", None])


def test_what_keras_writes_on_outputs_stays_there() -> None:
    """Masks, which losses use, and the logits before a softmax, which they prefer to it."""
    model = keras.Sequential([LAYERS.Embedding(9, 4, mask_zero=True), LAYERS.Dense(3, "softmax")])
    tokens, labels = np.array([[1, 2, 0]]), np.array([[1, 2, 0]])
    model.compile("sgd", "sparse_categorical_crossentropy")
    before = model.evaluate(tokens, labels, verbose=0)
    amp.decorate(model, policy=O2)
    assert model(tokens)._keras_logits.dtype == tf.float32
    assert model.evaluate(tokens, labels, verbose=0) == pytest.approx(before, rel=1e-2)
    amp.undecorate(model)
    model = keras.Sequential([LAYERS.Embedding(9, 4, mask_zero=True), LAYERS.Dense(3)])
    amp.decorate(model, policy=O2)
    assert model(tokens)._keras_mask.numpy().tolist() == [[True, True, False]]
    amp.undecorate(model)


# -- back again


@pytest.mark.parametrize("policy", [O1, O2, O2_FLOAT16, O2.replace(keep=["[!fa]*"])], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_undecorate_leaves_not_a_bit_behind(kind: str, policy: amp.Policy) -> None:
    model, x = made(kind)
    parts = [part.layer for part in BACKEND.layers(model)]
    attributes = [dict(vars(part)) for part in parts]
    before, weights = loss_and_gradients(model, x), [v.numpy() for v in variables(model)]
    attributes_after_a_call = [dict(vars(part)).keys() for part in parts]
    amp.decorate(model, policy=policy)
    changed = loss_and_gradients(model, x)
    amp.undecorate(model)
    assert not all(np.array_equal(a, b) for a, b in zip(changed, before, strict=True))
    for a, b in zip(loss_and_gradients(model, x), before, strict=True):
        np.testing.assert_array_equal(a, b)
    for variable, value in zip(variables(model), weights, strict=True):
        np.testing.assert_array_equal(variable, value)
    for part, old, keys in zip(parts, attributes, attributes_after_a_call, strict=True):
        assert vars(part).keys() == keys
        policy_before = old.get("_dtype_policy")
        assert vars(part).get("_dtype_policy") is policy_before
    for variable in variables(model):
        assert not [name for name in vars(variable) if "ampbridge" in name]


@pytest.mark.parametrize("make", [Attending, lambda: keras.Sequential([LAYERS.Dense(3)])])
def test_what_is_built_while_decorated_is_built_as_always(make: Callable[[], Any]) -> None:
    model, reference = make(), make()
    amp.decorate(model, policy=O2)
    assert set(policies(model).values()) == {f"mixed_{LOW}"}
    outputs = model(SEQUENCES)
    assert set(policies(model).values()) == {f"mixed_{LOW}"}  # also what was made meanwhile
    assert {v.dtype for v in model.variables} == {"float32"}
    amp.undecorate(model)
    assert set(policies(model).values()) == {"float32"}
    reference(SEQUENCES)
    reference.set_weights(model.get_weights())
    np.testing.assert_array_equal(model(SEQUENCES), reference(SEQUENCES))
    assert not np.array_equal(outputs, reference(SEQUENCES))
    if isinstance(model, keras.Sequential):
        assert [t.dtype for t in (*model.inputs, *model.outputs)] == ["float32", "float32"]


def test_a_decorated_model_that_is_dropped_leaves_nothing() -> None:
    """``framework_as_it_was`` looks: the last reference goes with the test."""
    for make in (perceptron, Module):
        amp.decorate(make(), policy=O2.replace(keep=["Dense"]))
    model = perceptron()
    amp.decorate(model, policy=O2_FLOAT16)
    model.compile("sgd", "sparse_categorical_crossentropy")  # wrapped: it scales the loss
    model.fit(X, np.arange(6) % 3, verbose=0)


# -- fit, and functions of the user's own


def matmul_dtypes(log: list[str], run: Callable[[], Any]) -> list[str]:
    log.clear()
    run()
    return sorted(set(log))


@pytest.fixture
def dense_inputs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The dtypes in which Dense layers get inputs and read kernels, as they run or are traced."""
    log: list[str] = []
    original = LAYERS.Dense.call

    def call(self: Any, inputs: Any, training: Any = None) -> Any:
        kernel = tf.convert_to_tensor(self.kernel)
        log.extend((inputs.dtype.name, kernel.dtype.name))
        return original(self, inputs, training)

    monkeypatch.setattr(LAYERS.Dense, "call", call)
    return log


@pytest.mark.parametrize("policy", [O1, O2], ids=["O1", "O2"])
def test_keras_own_loops_follow_at_once(policy: amp.Policy, dense_inputs: list[str]) -> None:
    model, labels = perceptron(), RANDOM.integers(0, 3, 6)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    loops: dict[str, Callable[[], Any]] = {
        "fit": lambda: model.fit(X, labels, verbose=0),
        "evaluate": lambda: model.evaluate(X, labels, verbose=0),
        "predict": lambda: model.predict(X, verbose=0),
    }
    for name, run in loops.items():
        assert matmul_dtypes(dense_inputs, run) == ["float32"], name
    amp.decorate(model, policy=policy)
    for name, run in loops.items():
        assert matmul_dtypes(dense_inputs, run) == [LOW], name
        assert matmul_dtypes(dense_inputs, run) == [], name  # traced once
    assert model.predict(X, verbose=0).dtype == np.float32
    amp.undecorate(model)
    predicted = model.predict(X, verbose=0)
    np.testing.assert_array_equal(predicted, tf.function(lambda x: model(x))(tf.constant(X)))


def test_a_user_s_function_follows_at_once_and_finds_its_old_traces() -> None:
    model, x = made("Sequential")
    traces: list[str] = []

    @tf.function
    def predict(x: Any) -> Any:
        traces.append(model.get_layer("first").compute_dtype)
        return model(x)

    full = predict(x)
    for _ in range(2):
        amp.decorate(model, policy=O2)
        assert not np.array_equal(predict(x), full)
        amp.undecorate(model)
        np.testing.assert_array_equal(predict(x), full)
    assert traces == ["float32", LOW]


def test_autograph_converts_what_it_would_have_converted() -> None:
    class Branching(tf.Module):
        def __call__(self, x: Any) -> Any:
            if tf.reduce_sum(x) > 1e9:
                x = x * 0.0
            return tf.matmul(x, x, transpose_b=True)

    model = Branching()
    amp.decorate(model, policy=O2)
    assert tf.function(lambda x: model(x))(tf.constant(X)).dtype == tf.float32
    amp.undecorate(model)


# -- training


@pytest.mark.parametrize("keep", [(), ("first",)], ids=["", "keep"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_schedule_changes_what_runs_at_the_right_step(compiled: bool, keep: Any) -> None:
    """With a learning rate of 0 the loss tells the policy by its bits."""
    low = [policy.replace(keep=keep) for policy in (O1, O2)]
    plan = [amp.Policy("O0"), *low, amp.Policy("O0"), low[1], low[0]]
    model = keras.Sequential(
        [
            keras.Input((8,)),
            LAYERS.LeakyReLU(),  # in float32 at O1, low at O2
            LAYERS.Dense(8, name="first"),
            LAYERS.Dense(3),
        ]
    )
    traces: list[int] = []

    def loss_fn(model: Any, x: Any) -> Any:
        traces.append(0)
        return tf.reduce_mean(tf.square(tf.cast(model(x), tf.float32)))

    expected = {}
    for policy in {*plan}:
        if policy.level != "O0":
            amp.decorate(model, policy=policy)
        run = tf.function(loss_fn, autograph=False) if compiled else loss_fn
        with amp.autocast(policy.replace(keep=()), backend="tensorflow"):
            expected[policy] = float(run(model, tf.constant(X)))
        amp.undecorate(model)
    assert len({*expected.values()}) == 3
    traces.clear()
    schedule = amp.Schedule([(2 * step, policy) for step, policy in enumerate(plan)])
    step = amp.train_step(
        loss_fn, model, keras.optimizers.SGD(0.0), policy=schedule, compile=compiled
    )
    losses = [step(X).loss for _ in range(2 * len(plan))]
    assert losses == [expected[policy] for policy in plan for _ in range(2)]
    assert len(traces) == (3 if compiled else len(losses))
    assert BACKEND.decoration(model, step.optimizer).policy == low[0]
    amp.undecorate(model)
    assert set(policies(model).values()) == {"float32"}


@pytest.mark.parametrize("masters", ["float32", "kahan", None])
@pytest.mark.slow
def test_tiny_updates_in_fit_move_masters_alone(masters: Any) -> None:
    """2,000 steps of 2^-10 on weights of 1, of which half a bfloat16 ulp is 2^-8 (2^-9 below)."""
    model = keras.Sequential(
        [keras.Input((1,)), LAYERS.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    model.compile(keras.optimizers.SGD(2.0**-10), lambda y, prediction: -prediction)
    amp.decorate(model, policy=O2.replace(masters=masters))
    data = tf.data.Dataset.from_tensors((np.ones((1, 1)), np.ones((1, 1)))).repeat(2000)
    model.fit(data, shuffle=False, verbose=0)
    amp.undecorate(model)
    (kernel,) = model.get_weights()
    np.testing.assert_allclose(kernel, 1.0 + (2000 * 2.0**-10 if masters else 0.0), rtol=1e-6)


@pytest.mark.parametrize("frequency", [None, 50])
def test_keras_average_of_weights_is_that_of_the_masters(frequency: int | None) -> None:
    """Updates under half a bfloat16 ulp: an average of low weights would stand still."""
    averages = []
    for policy in ("O0", O2):
        model = keras.Sequential(
            [keras.Input((1,)), LAYERS.Dense(1, use_bias=False, kernel_initializer="ones")]
        )
        amp.decorate(model, policy=policy)
        optimizer = keras.optimizers.SGD(
            2.0**-12, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=frequency
        )
        model.compile(optimizer, lambda y, prediction: -prediction)
        data = tf.data.Dataset.from_tensors((np.ones((1, 1)), np.ones((1, 1)))).repeat(200)
        model.fit(data, shuffle=False, verbose=0)  # ends with the average in the weights
        averages.append(float(model.get_weights()[0][0, 0]))
        amp.undecorate(model)
    assert averages[0] == averages[1]
    assert averages[0] > 1.04


def test_without_masters_weights_are_low_from_the_start() -> None:
    """A step of 0.5 from 1.003: 0.5, where a master would have come to 0.503, which is 0.50390625."""
    module = tf.Module()
    module.w = tf.Variable(1.003)
    amp.decorate(module, policy=O2.replace(masters=None))
    keras.optimizers.SGD(0.5).apply([tf.constant(1.0)], [module.w])
    amp.undecorate(module)
    assert float(module.w) == 0.5


@pytest.mark.parametrize("masters", ["stochastic", None])
def test_without_masters_a_constraint_of_the_user_s_own_holds_too(masters: Any) -> None:
    kernel = {"kernel_initializer": "ones", "kernel_constraint": keras.constraints.MaxNorm(0.3)}
    model = keras.Sequential([keras.Input((1,)), LAYERS.Dense(1, **kernel)])
    amp.decorate(model, policy=O2.replace(masters=masters))
    keras.optimizers.SGD(0.1).apply([tf.ones((1, 1)), tf.ones(1)], model.trainable_variables)
    amp.undecorate(model)
    assert float(model.layers[0].kernel[0, 0]) == pytest.approx(0.3, rel=2**-7)
    for variable in model.trainable_variables:
        value = tf.convert_to_tensor(variable)
        np.testing.assert_array_equal(value, tf.cast(tf.cast(value, LOW), tf.float32))


def test_a_parameter_that_is_read_twice_has_a_low_gradient() -> None:
    module = tf.Module()
    module.w = tf.Variable(1.0)
    amp.decorate(module, policy=O2)
    _, grads = amp.value_and_grad(
        lambda m, x: m.w * x[0] + m.w * x[1], module, tf.constant([1.0, 2.0**-9]), policy=O2
    )
    amp.undecorate(module)
    assert [float(g) for g in grads.values] == [1.0]  # 1 + 2^-9 is not of bfloat16


# -- saving


@KERAS_ITSELF_WARNS
def test_what_is_saved_and_copied_is_undecorated(tmp_path: Path) -> None:
    model, x = made("Sequential")
    expected = model(x)
    amp.decorate(model, policy=O2_FLOAT16)
    model.compile("adam", "sparse_categorical_crossentropy")  # wrapped: it scales the loss
    model.fit(X, np.arange(6) % 3, epochs=4, verbose=0)
    weights, slots = model.get_weights(), [v.numpy() for v in model.optimizer.variables]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    copies = {
        "load_model": loaded,
        "clone_model": keras.models.clone_model(model),
        "from_config": keras.Sequential.from_config(model.get_config()),
        "deepcopy": copy.deepcopy(model),
        "pickle": pickle.loads(pickle.dumps(model)),
    }
    assert set(policies(model).values()) == {"mixed_float16", "float32"}
    amp.undecorate(model)
    for name, other in copies.items():
        assert BACKEND.decoration(other, None) is None, name
        assert set(policies(other).values()) == {"float32"}, name
        other.set_weights(weights)
        np.testing.assert_array_equal(other(x), model(x), err_msg=name)
    for found, slot in zip(loaded.optimizer.variables, slots, strict=True):
        np.testing.assert_array_equal(found, slot)
    assert not np.array_equal(expected, model(x))  # it has been trained


def test_what_is_exported_runs_as_decorated(tmp_path: Path) -> None:
    model, x = made("Sequential")
    full = model(x)
    amp.decorate(model, policy=O2)
    expected = tf.function(lambda x: model(x))(x)
    model.export(tmp_path / "exported", verbose=False)
    amp.undecorate(model)
    exported = tf.saved_model.load(tmp_path / "exported")
    served = exported.serve(x)
    np.testing.assert_array_equal(served, expected)
    assert not np.array_equal(served, full)


@KERAS_ITSELF_WARNS
def test_a_copy_of_a_decorated_module_is_undecorated() -> None:
    model, x = made("tf.Module")
    expected = model(x)
    amp.decorate(model, policy=O2)
    copies = copy.copy(model), copy.deepcopy(model)
    for other in copies:
        assert BACKEND.decoration(other, None) is None
    np.testing.assert_array_equal(copies[1](x), expected)
    amp.undecorate(model)


# -- what is refused


def refusals() -> Iterator[tuple[str, Any, dict[str, Any], str]]:
    built = perceptron()
    yield "save_dtype", built, {"save_dtype": "float16"}, "get_weights"
    yield "native lists", built, {"policy": O2.replace(lists="native")}, "lists='tensorflow'"
    without = {"policy": O2.replace(masters=None)}
    yield "unbuilt without masters", keras.Sequential([LAYERS.Dense(3)]), without, "model.build"
    silent = tf.Module()
    silent.part = tf.Module()
    yield "uncallable", silent, {"policy": O2.replace(keep=["part"])}, "def __call__"


@pytest.mark.parametrize("case", range(4))
def test_what_cannot_be_is_refused_and_changes_nothing(case: int) -> None:
    _, model, arguments, hint = [*refusals()][case]
    before = dict(vars(model))
    with pytest.raises(amp.UnsupportedError, match=f"(?s)Hint: .*{hint}"):
        amp.decorate(model, **{"policy": O2, **arguments})
    assert vars(model) == before


def test_half_ahead_of_a_policy_warns() -> None:
    model = keras.Sequential([keras.Input((8,)), LAYERS.Dense(3, dtype="bfloat16")])
    with pytest.warns(
        amp.AmpBridgeWarning, match=r"(?s)model are in 16 bits by themselves: .*kernel.*Hint: "
    ):
        amp.decorate(model, policy=O1)


def test_of_weights_beyond_float16_those_that_would_be_low_are_told() -> None:
    """Of modules and of Keras' layers; not a table, nor what has not been built."""
    model = Module()
    model.part.w[0, 0].assign(-7e4)
    model.dense.bias.assign([0, 1e5, 0])
    model.table = keras.layers.Embedding(2, 2, trainable=False)
    model.table.build()
    model.kept_table = keras.layers.Layer()
    model.kept_table.add_weight(shape=(1,), initializer=lambda *_, **__: [9e4], trainable=False)
    model.unbuilt = LAYERS.Dense(2)
    names = r": dense\.bias \(100000\), part\.w \(70000\)\. (?s:.*)keep=\['dense', 'part'\]"
    with pytest.warns(amp.AmpBridgeWarning, match=names):
        amp.decorate(model, policy="O2")


def test_weights_beyond_float16_are_told_in_a_trace_too() -> None:
    model = perceptron()
    model.get_layer("head").bias.assign([0, 0, 7e4])

    @tf.function(autograph=False)
    def traced(x: Any) -> Any:
        return amp.decorate(model)(x)

    with pytest.warns(amp.AmpBridgeWarning, match=r"head\.bias \(70000\)"):
        traced(X)


def test_keras_own_average_of_weights_is_that_of_the_masters() -> None:
    model = perceptron()
    optimizer = keras.optimizers.SGD(1e-3, use_ema=True, ema_momentum=0.999)
    amp.decorate(model, optimizer, O2)
    model.compile(optimizer, "sparse_categorical_crossentropy")
    first = [w.numpy() for w in model.trainable_variables]
    exact = [w.astype(np.float64) for w in first]
    for batch in range(30):
        model.train_on_batch(X, np.arange(6) % 3)
        weight = 1.0 if batch == 0 else 0.001
        exact = [
            (1 - weight) * e + weight * w.numpy()
            for e, w in zip(exact, model.trainable_variables, strict=True)
        ]
    optimizer.finalize_variable_values(model.trainable_variables)
    for variable, expected in zip(model.trainable_variables, exact, strict=True):
        assert np.abs(variable.numpy() - expected).max() < 1e-6
    assert max(np.abs(e - b).max() for e, b in zip(exact, first, strict=True)) > 1e-5
