"""Observing: held against the recorder below, TensorFlow's own tapes, and NumPy on dumped tensors."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from processes import run_python

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402
from recorder import Seen as Recorded  # noqa: E402
from recorder import below_the_adapter  # noqa: E402

import ampbridge as amp  # noqa: E402
from ampbridge import Policy, lens, workloads  # noqa: E402
from ampbridge_lens.subject import Pass, Subject  # noqa: E402
from ampbridge_tensorflow import _private  # noqa: E402
from ampbridge_testing.gradients import same_bits  # noqa: E402
from ampbridge_testing.observing import Seen  # noqa: E402

BACKEND = amp.backend("tensorflow")

# What only names, makes or converts values, and what reads and writes variables.
NOT_REPORTED = {
    *("Shape", "Size", "Rank", "Fill", "IdentityN"),
    *("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"),
}


def observed(
    loss_fn: Any, model: Any, *batch: Any, policy: str | Policy = "O0", scale: float = 1.0
) -> tuple[Seen, Pass]:
    """What one pass showed, and what came out."""
    seen = Seen(BACKEND)
    return seen, Subject(loss_fn, model).run(batch, Policy.parse(policy), scale, seen)


def ops_of(seen: Seen) -> list[tuple[str, str]]:
    return [(call.op, call.layer) for call in seen.calls]


def mean_of_squares(model: Any, x: Any) -> Any:
    return tf.reduce_mean(tf.square(model(x)))


def values(*shape: int, seed: int = 0) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


class Module(tf.Module):
    """A tf.Module of one weight that runs a function."""

    def __init__(self, function: Callable[[Any, Any], Any], *shape: int, **parts: Any) -> None:
        super().__init__()
        self.weight = tf.Variable(values(*shape, seed=1))
        self._function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def __call__(self, x: Any) -> Any:
        return self._function(self, x)


# -- the forward pass, beside the recorder of A

WORKLOADS = ["digits-mlp", "digits-conv", "digits-transformer"]
POLICIES = [
    Policy("O0"),
    *(Policy(level, dtype) for level in ("O1", "O2") for dtype in ("float16", "bfloat16")),
    *(Policy("O1", "float16", lists=lists) for lists in ("paddle", "tensorflow", "safe")),
    Policy("O2", "bfloat16", lists="safe", keep=["head"]),
    Policy("O1", "float16", allow=["softmax"], deny=["linear", "gelu"]),
]
both_executions = pytest.mark.parametrize("execution", ["native", "simulated"])


@contextmanager
def forward_alone(loss_fn: Any) -> Iterator[tuple[Any, Callable[[], Recorded]]]:
    """``loss_fn``, and what the recorder has seen while it ran."""
    with below_the_adapter() as seen:
        bounds: list[int] = []

        def marked(*arguments: Any) -> Any:
            bounds.append(len(seen))
            loss = loss_fn(*arguments)
            bounds.append(len(seen))
            return loss

        def recorded() -> Recorded:
            first, last = bounds
            return [each for each in seen[first:last] if each[0] not in NOT_REPORTED]

        yield marked, recorded


@both_executions
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_census_is_the_recorder_s(name: str, policy: Policy, execution: Any) -> None:
    workload = workloads.find(name)("tensorflow", 0)
    policy = policy.replace(execution=execution)
    with forward_alone(workload.loss_fn) as (loss_fn, recorded):
        census = lens.census(loss_fn, workload.model, *workload.batches[0], policy=policy, passes=1)
        expected = recorded()
    counted: Counter[tuple[str, str]] = Counter()
    for row in census.rows:
        counted.update({tuple(kernel): times for kernel, times in row.kernels})
    assert counted == Counter(expected)
    if execution == "native" or policy.level == "O0":  # else kernels show the storage
        for row in census.rows:
            assert row.dtype == row.kernels[0][0].dtype


@pytest.mark.parametrize("name", WORKLOADS)
def test_kernels_come_in_the_order_of_the_ops(name: str) -> None:
    workload = workloads.find(name)("tensorflow", 0)
    with forward_alone(workload.loss_fn) as (loss_fn, recorded):
        seen, _ = observed(loss_fn, workload.model, *workload.batches[0], policy="O1")
        expected = recorded()
    assert [tuple(kernel) for call in seen.calls for kernel in call.kernels] == expected


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_simulated_ops_have_the_dtypes_of_native_ones(name: str, level: str) -> None:
    """But for those of which Keras itself computes a low result in float32."""
    in_float32 = ("mean", "layer_norm", "batch_norm")
    workload = workloads.find(name)("tensorflow", 0)

    def dtypes(execution: Any) -> list[tuple[str, str, str]]:
        policy = Policy.parse(level).replace(execution=execution)
        census = lens.census(workload.loss_fn, workload.model, *workload.batches[0], policy=policy)
        return [(r.op, r.layer, r.dtype) for r in census.rows if r.op not in in_float32]

    assert dtypes("simulated") == dtypes("native")


# -- what is one op


def test_a_product_and_its_bias_are_one_op() -> None:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(4, 3, name="conv"),
            layers.Conv2DTranspose(3, 2, name="up"),
            layers.DepthwiseConv2D(2, activation="relu", name="depthwise"),
            layers.Conv2D(2, 1, use_bias=False, name="bare"),
            layers.Flatten(name="flatten"),
            layers.Dense(3, activation="softmax", name="dense"),
        ]
    )
    seen, _ = observed(mean_of_squares, model, values(2, 8, 8, 2))
    assert ops_of(seen) == [
        ("conv2d", "conv"),
        ("conv_transpose2d", "up"),
        ("depthwise_conv2d", "depthwise"),
        ("relu", "depthwise"),
        ("conv2d", "bare"),
        ("reshape", "flatten"),
        ("linear", "dense"),
        ("softmax", "dense"),
        ("square", ""),
        ("mean", ""),
    ]
    shapes = {c.layer: [x.shape for x, _ in seen.inputs[c.number]] for c in seen.calls}
    assert shapes["conv"] == [(2, 8, 8, 2), (3, 3, 2, 4), (4,)]
    assert shapes["bare"] == [(2, 6, 6, 3), (1, 1, 3, 2)]


def test_a_bias_that_is_added_to_something_else_is_an_op() -> None:
    def run(module: Any, x: Any) -> Any:
        product = tf.matmul(tf.nn.bias_add(tf.matmul(x, module.weight), [1.0, 2.0]), module.weight)
        return product + tf.nn.bias_add(x, [1.0, 2.0])

    seen, _ = observed(mean_of_squares, Module(run, 2, 2), values(4, 2))
    names = [call.op for call in seen.calls]
    assert names == ["linear", "matmul", "bias_add", "add", "square", "mean"]


def test_functions_and_layers_of_several_ops_are_one() -> None:
    def run(module: Any, x: Any) -> Any:
        x = tf.nn.gelu(keras.ops.layer_normalization(tf.matmul(x, module.weight)))
        return tf.math.l2_normalize(module.drop(module.prelu(x), training=True))

    drop, prelu = layers.Dropout(0.5, seed=0), layers.PReLU()
    prelu.build((4, 3))
    seen, _ = observed(mean_of_squares, Module(run, 3, 3, drop=drop, prelu=prelu), values(4, 3))
    assert ops_of(seen)[:-2] == [
        ("matmul", ""),
        ("layer_norm", ""),
        ("gelu", ""),
        ("prelu", "prelu"),
        ("dropout", "drop"),
        ("normalize", ""),
    ]


def test_a_loss_object_is_one_op_wherever_it_was_made() -> None:
    outside = keras.losses.MeanSquaredError()

    def loss_fn(model: Any, x: Any) -> Any:
        return outside(x, model(x)) + keras.losses.MeanSquaredError()(x, model(x))

    module = Module(lambda m, x: x * m.weight, 3)
    for policy in ("O0", "O1:bfloat16", "O0"):
        seen, _ = observed(loss_fn, module, values(4, 3), policy=policy)
        names = [call.op for call in seen.calls]
        assert names.count("mse_loss") == 2
        assert "square" not in names


def test_a_layer_that_does_more_in_its_call_is_not_one_op() -> None:
    class Scaled(layers.LayerNormalization):
        def call(self, inputs: Any) -> Any:
            return super().call(inputs) * 2.0

    model = keras.Sequential([keras.Input((4,)), Scaled(name="scaled")])
    seen, _ = observed(mean_of_squares, model, values(2, 4))
    assert ops_of(seen)[:2] == [("layer_norm", "scaled"), ("multiply", "scaled")]


def test_an_op_that_the_table_has_not_comes_under_its_own_name() -> None:
    module = Module(lambda m, x: tf.math.igamma(tf.exp(x), m.weight), 3)
    seen, _ = observed(lambda m, x: tf.reduce_sum(m(x)), module, values(3))
    assert [call.op for call in seen.calls] == ["exp", "tf:Igamma", "sum"]


def test_a_conversion_belongs_to_the_op_that_takes_its_result() -> None:
    """Else what overflows in a cast would overflow nowhere."""

    def run(module: Any, x: Any) -> Any:
        return tf.exp(tf.cast(tf.cast(x * module.weight, tf.float16), tf.float32))

    x = tf.constant([1e5, 2e5, -1e6])
    seen, _ = observed(lambda m, x: tf.reduce_sum(m(x)), Module(run, 1), x)
    multiply, exp, _ = seen.calls
    assert (multiply.op, exp.op) == ("multiply", "exp")
    ((given, dtype),) = seen.inputs[exp.number]
    assert dtype == "float32"
    assert np.isfinite(given).all()
    assert np.isinf(seen.outputs[exp.number][0][0]).any()


def test_a_keras_variable_given_to_an_op_is_an_input_of_it() -> None:
    class Scale(keras.Layer):
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=shape[1:], initializer="ones")

        def call(self, x: Any) -> Any:
            return x * tf.exp(self.scale)

    model = keras.Sequential([keras.Input((3,)), Scale(name="scale")])
    seen, passed = observed(mean_of_squares, model, values(4, 3), policy="O1:bfloat16")
    exp = next(call for call in seen.calls if call.op == "exp")
    (left,) = seen.of(exp, "left")
    (gradient,) = passed.gradients.values()
    np.testing.assert_array_equal(left.values, gradient)


@pytest.mark.parametrize("policy", ["O0", "O1:bfloat16", "O2:bfloat16"])
def test_a_tf_variable_given_to_an_op_is_an_input_of_it(policy: str) -> None:
    """TensorFlow reads it below all that Python sees."""

    def run(module: Any, x: Any) -> Any:
        return keras.ops.add(x, module.weight) * tf.raw_ops.Exp(x=module.other)

    module, x = Module(run, 3, other=tf.Variable(values(3))), values(4, 3)
    seen, passed = observed(mean_of_squares, module, x, policy=policy)
    add, exp = (next(c for c in seen.calls if c.op == op) for op in ("add", "exp"))
    assert [e.place for e in seen.of(add, "left") if e.values.shape == (3,)] == [1]
    for name, call in (("weight", add), ("other", exp)):
        left = seen.of(call, "left")[-1]
        assert left.dtype == "float32"
        np.testing.assert_array_equal(left.values, passed.gradients[name])


def test_a_variable_that_is_looked_up_is_an_input() -> None:
    module = Module(lambda m, rows: tf.nn.embedding_lookup(m.weight, rows), 5, 2)
    rows = tf.constant([0, 3, 3])
    seen, passed = observed(mean_of_squares, module, rows)
    lookup = seen.calls[0]
    assert (lookup.op, lookup.kernels) == ("embedding", (("ResourceGather", "float32"),))
    (left,) = seen.of(lookup, "left")
    np.testing.assert_array_equal(left.values, passed.gradients["weight"])


def test_what_is_computed_while_weights_are_made_is_not_reported() -> None:
    class Late(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.inner(x)

    seen = Seen(BACKEND)
    model, x = Late(), values(4, 3)
    with BACKEND.observe(model, seen, gradients=True):
        model(x)
    assert ops_of(seen) == [("linear", "inner")]


def test_gradients_that_are_taken_in_the_forward_pass_are_no_ops_of_it() -> None:
    def loss_fn(model: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x)
        return tf.reduce_sum(tape.gradient(y, x))

    module = Module(lambda m, x: tf.exp(x * m.weight), 3)
    seen, passed = observed(loss_fn, module, values(3))
    assert [call.op for call in seen.calls] == ["multiply", "exp", "sum"]
    with tf.GradientTape() as tape:
        loss = loss_fn(module, values(3))
    np.testing.assert_array_equal(passed.gradients["weight"], tape.gradient(loss, module.weight))


# -- layers


def test_ops_of_tf_modules_and_of_layers_in_them_are_named() -> None:
    inner = Module(lambda m, x: tf.matmul(x, m.weight), 3, 3)
    block = Module(
        lambda m, x: m.dense(m.inner(x)) * m.weight, 3, inner=inner, dense=layers.Dense(3)
    )
    model = Module(lambda m, x: tf.exp(m.blocks[0](x) * m.weight), 3, blocks=[block])
    x = values(2, 3)
    model(x)
    seen, _ = observed(mean_of_squares, model, x)
    assert ops_of(seen) == [
        ("matmul", "blocks.0.inner"),
        ("linear", "blocks.0.dense"),
        ("multiply", "blocks.0"),
        ("multiply", ""),
        ("exp", ""),
        ("square", ""),
        ("mean", ""),
    ]


def test_a_layer_that_is_called_twice_is_reported_twice_and_its_parts_add_up() -> None:
    shared = layers.Dense(3, use_bias=False, name="shared")
    inputs = keras.Input((3,))
    model = keras.Model(inputs, shared(keras.ops.tanh(shared(inputs))))
    seen, passed = observed(mean_of_squares, model, values(4, 3))
    calls = [call for call in seen.calls if call.layer == "shared"]
    assert [call.op for call in calls] == ["linear", "linear"]
    first, second = (
        next(e.values for e in seen.of(call, "left") if e.place == 1) for call in calls
    )
    (gradient,) = passed.gradients.values()
    np.testing.assert_array_equal(first + second, gradient)


def test_arguments_of_a_layer_may_have_any_name() -> None:
    class Picking(layers.Dense):
        def call(self, x: Any, layer: int, original: int, watch: int, rules: int) -> Any:
            return super().call(x) * float(layer + original + watch + rules)

    def loss_fn(model: Any, x: Any) -> Any:
        return tf.reduce_mean(model(x, layer=1, original=2, watch=3, rules=4))

    model, x = Picking(3, use_bias=False), values(4, 3)
    loss_fn(model, x)  # which builds it
    seen, _ = observed(loss_fn, model, x, policy="O1:bfloat16")
    assert [call.op for call in seen.calls] == ["linear", "multiply", "mean"]


# -- the backward pass, beside TensorFlow's tapes


def test_gradients_in_float32_are_the_tape_s() -> None:
    model = keras.Sequential(
        [
            keras.Input((8, 3)),
            layers.Conv1D(4, 3, padding="same", name="conv"),
            layers.LayerNormalization(name="norm"),
            layers.Activation("gelu", name="gelu"),
            layers.Reshape((4, 8), name="reshape"),
            layers.GlobalAveragePooling1D(name="pool"),
            layers.Dense(2, name="head"),
        ]
    )
    x = values(4, 8, 3)
    seen, _ = observed(mean_of_squares, model, x)
    every_output = keras.Model(model.inputs, [layer.output for layer in model.layers])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        outputs = every_output(x)
        loss = tf.reduce_mean(tf.square(outputs[-1]))
    arrived = {call.layer: e for call in seen.calls for e in seen.of(call, "arrived")}
    left = {call.layer: seen.of(call, "left") for call in seen.calls}
    previous = x
    for layer, output in zip(model.layers, outputs, strict=True):
        np.testing.assert_array_equal(arrived[layer.name].values, tape.gradient(loss, output))
        sources = [previous, *(v.value for v in layer.trainable_variables)]
        expected = tape.gradient(loss, sources)
        assert [e.place for e in left[layer.name]] == list(range(len(sources)))
        for event, gradient in zip(left[layer.name], expected, strict=True):
            np.testing.assert_array_equal(event.values, gradient)
        previous = output


def raw_product() -> Module:
    return Module(lambda m, x: tf.tanh(tf.matmul(x, m.weight)), 3, 2)


def product_of_a_layer() -> Module:
    """Whose inputs the region casts before the layer runs."""
    dense = layers.Dense(2, "tanh", use_bias=False)
    dense.build((4, 3))
    module = Module(lambda m, x: m.dense(x), 3, 2, dense=dense)
    dense.kernel.assign(module.weight)
    module.weight = dense.kernel.value
    return module


@pytest.mark.parametrize("make", [raw_product, product_of_a_layer])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_in_low_precision_are_those_of_casts_by_hand(dtype: str, make: Any) -> None:
    module, x = make(), values(4, 3)
    policy = Policy("O1", dtype, execution="native")
    seen, _ = observed(lambda m, x: tf.reduce_sum(m(x)), module, x, policy=policy, scale=64.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        product = tf.matmul(tf.cast(x, dtype), tf.cast(module.weight, dtype))
        scaled = 64.0 * tf.reduce_sum(tf.cast(tf.tanh(product), tf.float32))
    matmul = seen.calls[0]
    (arrived,) = seen.of(matmul, "arrived")
    assert arrived.dtype == dtype
    np.testing.assert_array_equal(arrived.values, tape.gradient(scaled, product))
    found = {event.place: event for event in seen.of(matmul, "left")}
    for place, source in enumerate([x, module.weight]):
        assert found[place].dtype == "float32"
        np.testing.assert_array_equal(found[place].values, tape.gradient(scaled, source))


def test_a_backward_pass_that_overflows_begins_finite() -> None:
    module = Module(lambda m, x: tf.math.log(x * m.weight), 1)
    module.weight.assign([1e-6])
    policy = Policy("O1", "float16", allow=["log"], execution="native")
    x = tf.constant([1.0, 2.0, 3.0], tf.float16)
    seen, passed = observed(
        lambda m, x: tf.reduce_sum(m(x)), module, x, policy=policy, scale=1024.0
    )
    log = next(call for call in seen.calls if call.op == "log")
    assert log.dtype == "float16"
    assert all(np.isfinite(event.values).all() for event in seen.of(log, "arrived"))
    (left,) = seen.of(log, "left")
    assert np.isinf(left.values).any()
    assert not np.isfinite(passed.gradients["weight"]).all()


# -- nothing is changed by it


def many_uses(module: Any, x: Any) -> Any:
    """Values that are used several times, by one op twice, and ops with several outputs."""
    x = tf.matmul(x, module.weight)
    y = x * x + keras.ops.layer_normalization(x) + tf.nn.gelu(x) - keras.ops.matmul(x, x)
    first, second, third = tf.split(y + x, [1, 2, 1], axis=1)
    largest, _ = tf.math.top_k(y, 2)
    mean, variance = tf.nn.moments(y + first, axes=[0])
    rows = tf.gather(tf.matmul(tf.stack([x, x, y])[2], module.weight), [0, 2, 0, 0, 0])
    rows = rows * rows * tf.constant([[1.0], [0.3], [0.7], [0.11], [0.9]])
    parts = [second * third, largest, tf.reduce_mean(rows, axis=0, keepdims=True) * x]
    return tf.concat(parts, 1) * (mean + variance)[0]


def embedding_tied() -> keras.Model:
    class Tied(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = layers.Embedding(10, 4)
            self.attention = layers.MultiHeadAttention(2, 2)
            self.norm = layers.BatchNormalization()
            self(np.zeros((1, 3), np.int32))

        def call(self, x: Any, training: bool = True) -> Any:
            x = self.embedding(x)
            x = self.norm(x + self.attention(x, x, x), training=training)
            return tf.matmul(x, self.embedding.embeddings, transpose_b=True)

    return Tied()


def embedding_alone() -> keras.Model:
    """Its table's gradient are the rows that were looked up: IndexedSlices."""
    return keras.Sequential(
        [keras.Input((3,), dtype="int32"), layers.Embedding(10, 4), layers.Dense(2)]
    )


def recurrent() -> keras.Model:
    return keras.Sequential(
        [keras.Input((8,)), layers.Reshape((4, 2)), layers.LSTM(4), layers.Dense(4)]
    )


SAME_BITS: dict[str, tuple[Callable[[], Any], Callable[[], tf.Tensor]]] = {
    "many uses": (lambda: Module(many_uses, 4, 4), lambda: values(4, 4)),
    "tied embedding": (embedding_tied, lambda: tf.constant([[1, 2, 1], [3, 3, 9]])),
    "embedding alone": (embedding_alone, lambda: tf.constant([[1, 2, 1], [3, 3, 9]])),
    "recurrent": (recurrent, lambda: values(3, 8)),
}
ALL_POLICIES = [
    Policy("O0"),
    *(
        Policy(level, "float16", execution=execution)  # type: ignore[arg-type]
        for level in ("O1", "O2")
        for execution in ("native", "simulated")
    ),
]


@pytest.mark.parametrize("policy", ALL_POLICIES, ids=repr)
@pytest.mark.parametrize("name", SAME_BITS)
def test_every_bit_is_the_same(name: str, policy: Policy) -> None:
    make, batch = SAME_BITS[name]
    model, x = make(), batch()
    if policy.level == "O1" and name == "tied embedding":
        policy = policy.replace(deny=["softmax"])

    def gradients(observe: bool) -> tuple[Any, list[Any]]:
        def loss_fn(model: Any, x: Any) -> Any:
            if not observe:
                return mean_of_squares(model, x), None
            with BACKEND.observe(model, Seen(BACKEND), gradients=True):
                return mean_of_squares(model, x), None

        with Subject(mean_of_squares, model).under(policy):
            loss, _, grads = BACKEND.gradients(loss_fn, model, [x], policy, 256.0, None)
        return loss, grads

    (loss, plain), (seen_loss, seen) = gradients(False), gradients(True)
    assert float(loss) == float(seen_loss)
    assert list(map(type, plain)) == list(map(type, seen))  # IndexedSlices stay what they are
    if name == "embedding alone" and policy.level == "O0":
        assert isinstance(plain[0], tf.IndexedSlices)
    assert same_bits(list(map(BACKEND.to_numpy, plain)), list(map(BACKEND.to_numpy, seen)))


def test_a_tape_may_be_asked_again_and_for_second_derivatives() -> None:
    module, x = Module(lambda m, x: tf.exp(tf.sin(x * m.weight)), 3), values(3)
    observing = BACKEND.observe(module, Seen(BACKEND), gradients=True)
    with tf.GradientTape(persistent=True) as outer:
        with tf.GradientTape(persistent=True) as inner, observing:
            y = module(x)
        first, again = inner.gradient(y, module.weight), inner.gradient(y, module.weight)
    np.testing.assert_array_equal(first, again)
    z = (module.weight * x).numpy()
    expected = x * x * np.exp(np.sin(z)) * (np.cos(z) ** 2 - np.sin(z))
    np.testing.assert_allclose(outer.gradient(first, module.weight), expected, rtol=1e-4)


def places() -> dict[str, Any]:
    """What stands wherever something may be replaced."""
    found = {str(name): _private.value(name) for name in _private.PRIVATE_NAMES}
    spellings = [tf.nn.gelu, tf.matmul, keras.ops.matmul, keras.losses.mean_squared_error]
    return found | {"functions": spellings, "call": Module.__call__}


def test_nothing_is_left_behind() -> None:
    module, before = Module(lambda m, x: x * m.weight, 3), places()
    with BACKEND.observe(module, Seen(BACKEND), gradients=True):
        module(values(3))
        assert places() != before
    assert places() == before


def test_nothing_is_left_behind_by_an_exception() -> None:
    module, before = Module(lambda m, x: x @ m.weight, 3), places()
    seen = Seen(BACKEND)
    failing = pytest.raises(tf.errors.InvalidArgumentError)
    with failing, amp.autocast("O1", BACKEND), BACKEND.observe(module, seen, gradients=True):
        tf.exp(module.weight)
        module(values(3))
    assert places() == before
    assert [call.op for call in seen.calls] == ["exp"]


def test_observing_goes_on_after_an_op_that_failed() -> None:
    def run(module: Any, x: Any) -> Any:
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.matmul(x, module.weight)
        return x * module.weight

    seen, _ = observed(mean_of_squares, Module(run, 3), values(3))
    assert [call.op for call in seen.calls] == ["multiply", "square", "mean"]


def test_compiled_functions_run_eagerly_inside_and_compiled_elsewhere() -> None:
    traces: list[bool] = []

    @tf.function
    def compiled(x: Any) -> Any:
        traces.append(not tf.executing_eagerly())
        return tf.nn.softmax(x)

    @tf.function(jit_compile=True)
    def outer(x: Any) -> Any:
        return compiled(x) * 2.0

    def loss_fn(model: Any, x: Any) -> Any:
        loss = tf.reduce_sum(outer(x * model.weight))
        thread = threading.Thread(target=outer, args=(x,))
        thread.start()
        thread.join()
        return loss

    seen, _ = observed(loss_fn, Module(lambda m, x: x, 3), values(3))
    assert [call.op for call in seen.calls] == ["multiply", "softmax", "multiply", "sum"]
    assert traces == [False, True]
    outer(values(3))
    assert traces == [False, True]


def test_two_threads_each_see_their_own_pass() -> None:
    module, x = Module(lambda m, x: tf.exp(x * m.weight), 3), values(3)
    both_inside = threading.Barrier(2)
    counts: dict[str, int] = {}

    def run(policy: str) -> None:
        def loss_fn(model: Any, x: Any) -> Any:
            both_inside.wait()
            loss = tf.reduce_sum(model(x))
            both_inside.wait()
            return loss

        seen = Seen(BACKEND)
        observing = BACKEND.observe(module, seen, gradients=True)
        with tf.GradientTape() as tape, amp.autocast(policy, BACKEND), observing:
            loss = loss_fn(module, x)
        tape.gradient(loss, module.weight)
        counts[policy] = len(seen.calls) + len(seen.gradients)

    before = places()
    threads = [threading.Thread(target=run, args=(policy,)) for policy in ("O0", "O1:bfloat16")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == {"O0": 3 + 3 + 4, "O1:bfloat16": 3 + 3 + 4}
    assert places() == before


def test_of_a_recomputed_block_the_ops_are_seen_and_no_gradients() -> None:
    module = Module(lambda m, x: tf.recompute_grad(lambda x: tf.exp(x * m.weight))(x), 3)
    seen, passed = observed(mean_of_squares, module, values(3))
    assert [call.op for call in seen.calls] == ["multiply", "exp", "square", "mean"]
    assert {event.call.op for event in seen.gradients} == {"square", "mean"}
    assert np.isfinite(passed.gradients["weight"]).all()


def test_a_tensorflow_that_has_moved_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = _private.RECORD_OPERATION._replace(attribute="_moved_away")
    monkeypatch.setattr(_private, "OF_OBSERVING", (gone,))
    module = Module(lambda m, x: x, 3)
    refused = pytest.raises(amp.UnsupportedError, match="gradients of ops cannot be observed")
    with refused, BACKEND.observe(module, Seen(BACKEND), gradients=True):
        pass


def test_a_graph_is_refused() -> None:
    @tf.function(autograph=False)
    def traced() -> Any:
        with BACKEND.observe(Module(lambda m, x: x, 3), Seen(BACKEND), gradients=True):
            return tf.ones(3)

    with pytest.raises(amp.UnsupportedError, match="a graph that is being traced"):
        traced()


# -- ranges, beside NumPy


def expected_range(dumped: np.ndarray, scale: float) -> dict[str, Any]:
    """By NumPy's own casts to float16, and by doubling until it overflows."""
    scaled = dumped.astype(np.float64) * scale
    with np.errstate(over="ignore"):
        low = scaled.astype(np.float32).astype(np.float16)
        largest = np.abs(scaled).max()
        fits = [k for k in range(-60, 60) if np.isfinite(np.float16(largest * 2.0**k))]
    smallest_normal = np.finfo(np.float16).smallest_normal
    return {
        "largest": float(largest),
        "overflowing": float(np.mean(np.isinf(low))),
        "flushed": float(np.mean((low == 0) & (scaled != 0))),
        "subnormal": float(np.mean((low != 0) & (np.abs(scaled) < smallest_normal))),
        "headroom": max(fits),
        "total": dumped.size,
    }


@pytest.mark.parametrize("scale", [1.0, pytest.param(2.0**30, marks=pytest.mark.nightly)])
def test_ranges_are_numpy_s_on_dumped_tensors(scale: float) -> None:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(32, name="wide", kernel_initializer="random_normal"),
            layers.Activation("gelu", name="gelu"),
            layers.LayerNormalization(name="norm", epsilon=1e-12),
            layers.Dense(8, name="head"),
        ]
    )
    x = values(64, 6) * tf.constant([1e-8, 1e-5, 1.0, 1e4, 1e5, 1e-3])
    found = lens.ranges(mean_of_squares, model, x, scale=scale)
    every_output = keras.Model(model.inputs, [layer.output for layer in model.layers])
    with tf.GradientTape() as tape:
        outputs = every_output(x)
        loss = tf.reduce_mean(tf.square(outputs[-1]))
    parameters = [v.value for v in model.trainable_variables]
    gradients = tape.gradient(loss, [*outputs, *parameters])
    of_outputs, of_parameters = gradients[: len(outputs)], gradients[len(outputs) :]
    dumped: dict[tuple[str, str], tuple[Any, float]] = {}
    for layer, output, gradient in zip(model.layers, outputs, of_outputs, strict=True):
        dumped["output", layer.name] = (output, 1.0)
        dumped["gradient", layer.name] = (gradient, scale)
    for name, gradient in zip(BACKEND.parameter_names(model), of_parameters, strict=True):
        dumped["parameter", name] = (gradient, scale)
    rows = {(row.kind, row.layer or row.name): row for row in found.rows}
    for key, (tensor, factor) in dumped.items():
        told = rows[key].values.to_dict()
        expected = expected_range(np.asarray(tensor), factor)
        assert {name: told[name] for name in expected} == expected, key


def test_the_safe_scale_is_safe_and_twice_it_is_not() -> None:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "gelu"), layers.Dense(1)])
    x = values(16, 6)
    safe = lens.ranges(mean_of_squares, model, x).safe_scale
    assert safe is not None

    def is_finite(scale: float) -> bool:
        scaler = amp.GradScaler(scale, max_scale=2.0**40)
        _, grads = amp.value_and_grad(mean_of_squares, model, x, policy="O1", scaler=scaler)
        return all(np.isfinite(g).all() for g in grads)

    assert is_finite(safe)
    assert not is_finite(2 * safe)


# -- values and memory


def test_sparse_gradients_and_keras_variables_have_values() -> None:
    sparse = tf.IndexedSlices(tf.ones((2, 3)), tf.constant([1, 1]), tf.constant([2, 3]))
    np.testing.assert_array_equal(BACKEND.to_numpy(sparse), [[0, 0, 0], [2, 2, 2]])
    variable = keras.Variable(np.array([1.0, 2.0], np.float32))
    np.testing.assert_array_equal(BACKEND.to_numpy(variable), [1.0, 2.0])


MEGABYTE = 2**20


def held_at_once(count: int) -> Callable[[], None]:
    def action() -> None:
        kept = []
        for number in range(count):
            kept.append(tf.random.stateless_uniform((MEGABYTE // 4,), (number, 0)))
        del kept

    return action


@pytest.mark.parametrize(
    "environment, is_told",
    [
        ({"TF_ENABLE_ONEDNN_OPTS": "1"}, True),
        ({"TF_ENABLE_ONEDNN_OPTS": "0"}, False),
        ({"TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPU_ALLOCATOR_USE_BFC": "1"}, True),
    ],
)
def test_peak_memory_is_told_by_an_allocator_that_counts(
    environment: dict[str, str], is_told: bool
) -> None:
    """TensorFlow takes oneDNN's where the CPU has AVX512-VNNI or more; the plain one does not count.

    In a process of its own, as TensorFlow chooses once.
    """
    code = (
        "import tensorflow as tf, ampbridge as amp\n"
        "print(amp.backend('tensorflow').peak_memory(lambda: tf.ones((2**20,)).numpy()))"
    )
    peak = run_python("-c", code, environment={"CUDA_VISIBLE_DEVICES": "", **environment})
    if is_told:
        assert 2**22 <= int(peak) <= 2**23
    else:
        assert peak == "None\n"


def test_peak_memory_counts_what_is_held_at_once() -> None:
    if BACKEND.peak_memory(held_at_once(1)) is None:
        pytest.skip("TensorFlow's allocator does not count here: TF_CPU_ALLOCATOR_USE_BFC=1")
    already_there = tf.random.stateless_uniform((MEGABYTE,), (0, 0))
    one, four = (BACKEND.peak_memory(held_at_once(n)) for n in (1, 4))
    # An allocator that has been in use hands out chunks that are larger than what is asked for.
    assert 3 * MEGABYTE <= four - one <= 4.5 * MEGABYTE
    assert four < 9 * MEGABYTE  # twice the arrays: not what is held beside them, nor in all
    del already_there


def test_peak_memory_is_not_told_while_somebody_else_profiles(tmp_path: Any) -> None:
    ran = []
    tf.profiler.experimental.start(str(tmp_path))
    try:
        assert BACKEND.peak_memory(lambda: ran.append(1)) is None
    finally:
        tf.profiler.experimental.stop()
    assert ran == [1]
