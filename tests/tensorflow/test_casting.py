"""Regions: what they reach in TensorFlow, what they leave as it was, and what stands in for what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from recorder import RECORDERS, below_the_adapter  # noqa: E402

import ampbridge as amp  # noqa: E402
from ampbridge.errors import UnsupportedError  # noqa: E402
from ampbridge_tensorflow import _private  # noqa: E402
from ampbridge_tensorflow.autocast import casting  # noqa: E402

F16, BF16, F32 = tf.float16, tf.bfloat16, tf.float32
A = tf.random.stateless_normal((8, 8), (1, 2))
B = tf.Variable(tf.random.stateless_normal((8, 8), (3, 4)))
H = tf.cast(A, F16)


def o1(dtype: str = "float16", **lists: Any) -> Any:
    return casting.region(amp.Policy("O1", dtype, execution="native", **lists))


def both(function: Callable[[], Any], **options: Any) -> Iterator[Any]:
    """The result in eager code and in tf.function."""
    yield function()
    yield tf.function(function, **options)()


# -- regions


def test_nested_regions_and_o0_inside() -> None:
    with o1():
        low = A @ B
        assert low.dtype == F16
        with casting.region(amp.Policy("O0")):
            assert (low @ B).dtype == F32
            assert tf.nn.relu(low).dtype == F32
            assert keras.ops.matmul(low, low).dtype == F32
            with o1("bfloat16"):
                assert (low @ B).dtype == BF16
        assert (A @ B).dtype == F16
    assert (A @ B).dtype == F32


def test_o0_alone_replaces_nothing() -> None:
    before = held()
    with casting.region(amp.Policy("O0")):
        assert held() == before


def held() -> list[int]:
    """The identity of what every place that the adapter replaces holds at this moment."""
    sites = casting.find_sites()
    return [id(vars(site.owner)[site.attribute]) for site in sites]


def test_everything_is_restored_also_by_an_exception() -> None:
    places = [(s.owner, s.attribute, s.original) for s in casting.find_sites()]
    assert len(places) > 150
    with pytest.raises(KeyError), o1():
        replaced = [vars(owner)[name] is not original for owner, name, original in places]
        assert all(replaced)
        raise KeyError
    assert all(vars(owner)[name] is original for owner, name, original in places)


def test_what_somebody_else_replaced_before_is_called_and_comes_back() -> None:
    with o1():
        pass
    with below_the_adapter() as seen:
        theirs = _private.find(_private.EAGER_OP)
        with o1():
            tf.matmul(A, B)
        assert _private.find(_private.EAGER_OP) == theirs
    assert ("MatMul", "float16") in seen


def test_a_function_that_somebody_else_replaced_stays_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with o1():
        pass

    def theirs(*args: Any) -> Any:
        return args

    monkeypatch.setattr(keras.losses, "mean_squared_error", theirs)
    with o1():
        assert keras.losses.mean_squared_error is theirs
    assert keras.losses.mean_squared_error is theirs


def test_what_tensorflow_has_not_is_refused() -> None:
    native_lists = amp.Policy(lists="native")
    with pytest.raises(UnsupportedError, match="Hint: "), casting.region(native_lists):
        pass


# -- traces


def test_a_trace_is_never_reused_under_another_policy() -> None:
    traces = []

    @tf.function
    def f(x: Any) -> Any:
        traces.append(1)
        return x @ B

    for policy, dtype in [
        ("O0", F32),
        ("O1", F16),
        ("O0", F32),
        ("O1:bfloat16", BF16),
        ("O1", F16),
    ]:
        with casting.region(amp.Policy.parse(policy)):
            assert f(A).dtype == dtype
    assert len(traces) == 3


def test_a_function_within_a_function_has_traces_of_its_own() -> None:
    inner = tf.function(lambda x: x @ B)

    @tf.function
    def outer(x: Any) -> Any:
        plain = inner(x)
        with o1():
            return plain, inner(x)

    plain, low = outer(A)
    assert (plain.dtype, low.dtype) == (F32, F16)


def test_a_region_in_a_trace_under_xla() -> None:
    @tf.function(jit_compile=True)
    def f(x: Any) -> Any:
        with o1():
            low = x @ B
            return low, tf.nn.softmax(low)

    assert [t.dtype for t in f(A)] == [F16, F32]
    program = f.experimental_get_compiler_ir(A)(stage="hlo")
    assert "f16[8,8]" in program
    assert "f32[8,8]{1,0} exponential" in program


# -- exactness


def mixed_by_hand(x: Any, w: Any, b: Any, v: Any, dtype: tf.DType) -> Any:
    low = tf.nn.relu(
        tf.nn.bias_add(tf.matmul(tf.cast(x, dtype), tf.cast(w, dtype)), tf.cast(b, dtype))
    )
    low = low + low * tf.tanh(low)
    return tf.reduce_sum(tf.nn.softmax(tf.cast(tf.matmul(low, tf.cast(v, dtype)), F32))[:, 0])


def plain_model(x: Any, w: Any, b: Any, v: Any) -> Any:
    h = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, w), b))
    h = h + h * tf.tanh(h)
    return tf.reduce_sum(tf.nn.softmax(tf.matmul(h, v))[:, 0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mode", ["eager", "tf.function", "XLA"])
def test_bit_for_bit_as_casts_by_hand(mode: str, dtype: str) -> None:
    w, b, v = tf.Variable(A), tf.Variable(A[0]), tf.Variable(A[:, :4])

    def with_gradients(loss: Callable[[], Any]) -> Any:
        with tf.GradientTape() as tape:
            value = loss()
        return [value, *tape.gradient(value, [w, b, v])]

    def ours() -> Any:
        def loss() -> Any:
            with o1(dtype):
                return plain_model(A, w, b, v)

        return with_gradients(loss)

    def by_hand() -> Any:
        return with_gradients(lambda: mixed_by_hand(A, w, b, v, tf.as_dtype(dtype)))

    if mode != "eager":
        options = {"autograph": False, "jit_compile": mode == "XLA"}
        ours, by_hand = tf.function(ours, **options), tf.function(by_hand, **options)
    for a, e in zip(ours(), by_hand(), strict=True):
        assert a.dtype == e.dtype
        np.testing.assert_array_equal(a.numpy(), e.numpy())


# -- names: each optional one enters with what breaks without it


@pytest.mark.parametrize(
    "call",
    [
        lambda: H / A,  # GLOBAL_DISPATCHERS
        lambda: tf.math.divide_no_nan(H, A),
        lambda: tf.one_hot([1], 3, on_value=H[0, 0], off_value=A[0, 0]),
        lambda: H + B,
        lambda: tf.tensor_scatter_nd_update(H, [[0]], A[:1]),
        lambda: tf.pad(H, [[1, 1], [0, 0]], constant_values=A[0, 0]),  # EAGER_FALLBACK
        lambda: tf.clip_by_value(H, A - 1.0, A + 1.0),
        lambda: tf.where(A > 0.0, H, A),
        lambda: tf.stack([H, A]),
        lambda: tf.add_n([H, A]),
    ],
)
def test_mixed_inputs_are_settled_in_float32(call: Callable[[], Any]) -> None:
    with o1():
        assert [r.dtype for r in both(call, autograph=False)] == [F32, F32]


def test_a_variable_takes_low_values() -> None:  # CONVERSION
    variable = tf.Variable(tf.zeros((8, 8)))
    with o1():
        for _ in both(lambda: variable.assign(H)):
            np.testing.assert_array_equal(variable, tf.cast(H, F32))


def test_a_low_variable_stays_low_where_unlisted_ops_are_float32() -> None:
    variable = tf.Variable(H)
    with o1(lists="tensorflow"):
        for _ in both(lambda: variable.assign_add(H)):
            assert variable.dtype == F16


def test_bfloat16_times_float32_is_no_sparse_matmul() -> None:  # SPARSE_MATMUL
    low = tf.cast(A, BF16)
    with o1("bfloat16"):
        assert [r.dtype for r in both(lambda: tf.matmul(low, B))] == [BF16, BF16]
    with o1("bfloat16", deny=["matmul"]):
        assert [r.dtype for r in both(lambda: tf.matmul(low, B))] == [F32, F32]


def test_lists_of_tensors_are_stacked_and_cast() -> None:
    with o1():
        assert [r.dtype for r in both(lambda: tf.reduce_sum([H[0, 0], H[0, 1]]))] == [F32, F32]


def test_numpy_and_python_values_follow() -> None:
    with o1():
        assert (H + 1.0).dtype == F16
        assert (H * np.ones((8, 8))).dtype == F16  # float64 by NumPy's default, not by choice
        assert (H + np.ones((8, 8), np.float32)).dtype == F16  # as TensorFlow converts operands
        assert tf.matmul(np.ones((8, 8), np.float32), B).dtype == F16
        assert tf.raw_ops.MatMul(a=A, b=np.ones((8, 8))).dtype == F16
        assert tf.matmul(A, keras.Variable(A)).dtype == F16


def test_the_bias_follows_what_it_is_added_to() -> None:
    with o1():
        assert [r.dtype for r in both(lambda: tf.nn.bias_add(H, B[0]))] == [F16, F16]
        assert [r.dtype for r in both(lambda: tf.nn.bias_add(A, B[0]))] == [F32, F32]


@pytest.mark.parametrize("function", [tf.linalg.svd, tf.linalg.eigvalsh, tf.math.erfinv], ids=str)
def test_an_op_without_a_low_kernel_runs_in_float32(function: Any) -> None:  # KERNELS
    with o1():
        for result in both(lambda: tf.nest.flatten(function(H))[0]):
            assert result.dtype == F32


def test_ops_follow_while_op_callbacks_are_on() -> None:
    tf.debugging.enable_check_numerics()
    try:
        with o1():
            low = A @ B
            assert low.dtype == F16
            assert (low + A).dtype == F32
            assert tf.exp(low).dtype == F32
    finally:
        tf.debugging.disable_check_numerics()


def test_loops_keep_the_dtype_they_began_with() -> None:  # WHILE_LOOP, AUTOGRAPH_LOOP
    def by_function() -> Any:
        return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.tanh(x @ B)), (0, A))[1]

    def by_python(x: Any) -> Any:
        for _ in tf.range(3):
            x = tf.tanh(x @ B)
        return x

    with o1():
        assert tf.function(by_function)().dtype == F32
        assert tf.function(by_python)(A).dtype == F32


def test_branches_end_in_a_common_dtype() -> None:  # COND, INDEXED_CASE, AUTOGRAPH_COND
    def by_python(x: Any, p: Any) -> Any:
        if p:  # noqa: SIM108 - AutoGraph's branches are what is tested
            y = x @ B
        else:
            y = x
        return y

    with o1():
        yes = tf.constant(True)
        by_function = tf.function(lambda p: tf.cond(p, lambda: A @ B, lambda: A))
        assert by_function(yes).dtype == F32
        assert tf.function(by_python)(A, yes).dtype in (F16, F32)
        case = tf.function(lambda i: tf.switch_case(i, [lambda: A @ B, lambda: A]))
        assert case(tf.constant(0)).dtype == F32


@pytest.mark.parametrize("method", ["write", "unstack", "scatter", "split"])
def test_a_tensor_array_takes_low_values(method: str) -> None:  # TENSOR_ARRAY_*
    arguments = {
        "write": (0, H),
        "unstack": (H,),
        "scatter": (list(range(8)), H),
        "split": (H, [1] * 8),
    }[method]

    def fill() -> Any:
        array = tf.TensorArray(F32, 8, infer_shape=False)
        return getattr(array, method)(*arguments).read(0)

    with o1():
        assert [r.dtype for r in both(fill)] == [F32, F32]


@pytest.mark.parametrize("mode", RECORDERS)
def test_gradients_within_a_region_do_not_follow_its_lists(mode: str) -> None:  # EAGER_GRADIENT
    def run() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(A @ B))
        with o1():
            return tape.gradient(loss, B)

    _, seen = RECORDERS[mode](run)
    assert {dtype for op, dtype in seen if op == "MatMul"} == {"float32"}


def test_symbolic_gradients_within_a_region() -> None:  # GRAPH_GRADIENT
    def run() -> Any:
        x = tf.identity(A)
        y = tf.tanh(x @ x)
        with o1():
            return tf.gradients(y, x)

    _, seen = RECORDERS["tf.function"](run)
    assert {dtype for op, dtype in seen if op == "MatMul"} == {"float32"}


def test_custom_gradients_take_the_dtypes_of_their_inputs() -> None:  # CUSTOM_GRADIENT_*
    @tf.custom_gradient
    def product(x: Any, w: Any) -> Any:
        return x @ w, lambda dy: (
            dy @ tf.transpose(w),
            tf.transpose(x) @ dy,
        )  # dy float16, w float32

    weight = tf.convert_to_tensor(B)

    def run() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weight)
            with o1():
                loss = tf.reduce_sum(tf.tanh(product(tf.tanh(A @ B), weight)))
        return tape.gradient(loss, [weight, B])

    for gradients in both(run):
        assert [g.dtype for g in gradients] == [F32, F32]


def test_a_recomputed_forward_pass_casts_as_the_first() -> None:
    w = tf.Variable(tf.ones((8, 8)) * 0.1)
    ran: list[str] = []

    def forward(x: Any) -> Any:
        y = tf.tanh(x @ w) @ w
        ran.append(y.dtype.name)
        return y

    recomputed = tf.recompute_grad(forward)

    def run() -> Any:
        with tf.GradientTape() as tape, o1():
            loss = tf.reduce_sum(recomputed(A))
        return tape.gradient(loss, w)

    for gradient in both(run):
        assert gradient.dtype == F32
    assert len(ran) >= 4
    assert set(ran) == {"float16"}


# -- Keras


def test_models_made_inside_of_a_region_are_as_outside() -> None:
    def make() -> keras.Model:
        keras.utils.set_random_seed(0)
        inputs = keras.Input((5, 8))
        x = keras.layers.MultiHeadAttention(2, 4)(inputs, inputs)
        x = keras.ops.exp(keras.layers.LSTM(4)(x))
        return keras.Model(inputs, keras.layers.Dense(3)(x))

    plain = make()
    with o1():
        inside = make()
    for layer in inside._flatten_layers():
        assert (layer.compute_dtype, layer.dtype_policy.name) == ("float32", "float32")
    assert [o.dtype for o in inside.outputs] == [o.dtype for o in plain.outputs]
    for a, b in zip(inside.weights, plain.weights, strict=True):
        assert a.dtype == "float32"
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert inside(tf.zeros((2, 5, 8))).dtype == F32


def test_a_lazily_built_model_is_built_in_float32() -> None:
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(2)])
    with o1():
        assert model(A).dtype == F16
    assert {v.dtype for v in model.variables} == {"float32"}
    assert {layer.compute_dtype for layer in model._flatten_layers()} == {"float32"}
    assert model(A).dtype == F32


def test_what_is_built_inside_is_as_what_is_built_outside() -> None:  # LAYER_BUILD
    """The inner model first meets float16; an initializer may well multiply matrices."""

    def square_root(shape: Any, dtype: Any = None) -> Any:
        return tf.matmul(A, A)[: shape[0], : shape[1]]

    def make() -> keras.Model:
        inner = keras.Sequential([keras.layers.Dense(4, kernel_initializer=square_root)])
        return keras.Sequential([keras.layers.Dense(4, kernel_initializer="ones"), inner])

    outside, inside = make(), make()
    outside(A)
    with o1():
        inside(A)
    assert inside.layers[1].inputs[0].dtype == "float32"
    np.testing.assert_array_equal(inside(A), outside(A))


def test_a_layer_without_a_rule_takes_low_values_as_they_are() -> None:  # LAYER_INPUT
    with o1():
        assert [r.dtype for r in both(lambda: keras.layers.ReLU()(H))] == [F16, F16]


def test_a_functional_model_made_inside_has_the_dtypes_of_one_made_outside() -> None:
    """A layer whose output Keras finds out by running it (OUTPUT_SPEC)."""

    class Gram(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return tf.matmul(x, x, transpose_b=True)

    with o1():
        assert Gram()(keras.Input((4, 4))).dtype == "float32"


@pytest.mark.parametrize(
    ("listed", "dtype"),
    [
        ({}, F16),
        ({"deny": ["linear"]}, F32),
        ({"deny": ["relu"]}, F32),
        ({"allow": ["softmax"]}, F16),
    ],
)
def test_dense_and_its_activation(listed: Any, dtype: tf.DType) -> None:
    layer = keras.layers.Dense(4, activation="softmax" if "allow" in listed else "relu")
    layer.build((8, 8))
    with o1(**listed):
        assert [r.dtype for r in both(lambda: layer(A))] == [dtype, dtype]


def test_attention_is_left_to_its_parts() -> None:
    """Denied projections see the input itself, not its float16 rounding."""
    layer = keras.layers.MultiHeadAttention(2, 4)
    x = tf.random.stateless_normal((2, 3, 8), (5, 6))
    layer(x, x)
    seen = []
    project = layer.query_dense.call
    layer.query_dense.call = lambda value: seen.append(value) or project(value)
    with below_the_adapter() as ops, o1(deny=["einsum"]):
        layer(x, x)
    np.testing.assert_array_equal(seen[0], x)
    assert ("Softmax", "float32") in ops


@pytest.mark.parametrize("mode", RECORDERS)
def test_a_composite_of_listed_ops_is_left_to_them(mode: str) -> None:
    images, depth, point = tf.ones((1, 4, 4, 2)), tf.ones((2, 2, 2, 1)), tf.ones((1, 1, 2, 2))

    def run() -> Any:
        with o1():
            return keras.ops.separable_conv(images, depth, point)

    _, seen = RECORDERS[mode](run)
    assert {d for op, d in seen if op in ("Conv2D", "DepthwiseConv2dNative")} == {"float16"}


def test_a_denied_layer_is_float32_throughout() -> None:
    layer = keras.layers.LSTM(4)
    layer.build((2, 3, 8))
    x = tf.ones((2, 3, 8))
    with below_the_adapter() as seen, o1(deny=["lstm"]):
        assert layer(tf.cast(x, F16)).dtype == F32
    assert ("MatMul", "float32") in seen
    assert ("MatMul", "float16") not in seen


def test_fit_inside_and_outside() -> None:
    x, y = np.ones((8, 4), "float32"), np.ones((8, 2), "float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    with o1():
        with pytest.warns(amp.AmpBridgeWarning, match="loss"):  # is not scaled
            model.fit(x, y, verbose=0)
        assert model.predict(x, verbose=0).dtype == np.float16
    assert model.predict(x, verbose=0).dtype == np.float32


# -- private names


def test_every_private_name_exists_in_the_checked_version() -> None:
    missing = [str(name) for name in _private.PRIVATE_NAMES if _private.find(name) is None]
    assert not missing


def test_a_moved_required_name_is_a_clear_error_and_nothing_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = _private.GRAPH_OP._replace(attribute="_moved_away")
    names = tuple(gone if name == _private.GRAPH_OP else name for name in _private.PRIVATE_NAMES)
    before = held()
    monkeypatch.setattr(_private, "PRIVATE_NAMES", names)
    with pytest.raises(UnsupportedError) as error, o1():
        pass
    monkeypatch.undo()
    assert str(error.value) == (
        f"TensorFlow {tf.__version__} with Keras {keras.__version__} has no "
        "tensorflow.python.framework.op_def_library._moved_away; without it ops in tf.function do "
        "not follow the lists.\n"
        f"Hint: use a checked version, {_private.CHECKED}; policy='O0' needs none of it."
    )
    assert held() == before
    with o1():
        assert (A @ B).dtype == F16


def test_without_an_optional_name_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = _private.SPARSE_MATMUL._replace(attribute="_moved_away")
    names = tuple(
        gone if name == _private.SPARSE_MATMUL else name for name in _private.PRIVATE_NAMES
    )
    monkeypatch.setattr(_private, "PRIVATE_NAMES", names)
    with o1():
        assert (A @ B).dtype == F16


def test_a_value_of_another_graph_is_tensorflow_s_error() -> None:
    """The last resort casts to float32, and a cast that raises is not to be retried by another."""
    strays: list[Any] = []
    tf.function(lambda: strays.append(tf.cast(A, F16) + 1.0))()
    with o1(), pytest.raises((TypeError, ValueError), match="out of scope"):
        tf.cast(strays[0], F32)
