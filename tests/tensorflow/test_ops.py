"""Each op runs in the dtype that ``Policy.category`` says, and every witness says so.

The recorder looks from below. Natively: a simulated op computes in float32, and shows its rule by its result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from recorder import RECORDERS  # noqa: E402

import ampbridge as amp  # noqa: E402
from ampbridge.policies import op_table  # noqa: E402
from ampbridge.reports.explain import ExplanationTable  # noqa: E402
from ampbridge_tensorflow.autocast import casting, functions  # noqa: E402

Call = Callable[[Any, Any], Any]
ON_CPU = not tf.config.list_physical_devices("GPU")
IMAGES, KERNEL = (1, 4, 4, 2), (2, 2, 2, 2)

# canonical op -> TensorFlow's op that is watched, and a call. x is (4, 4), y float32 beside it.
OPS: dict[str, tuple[str, Call]] = {
    "matmul": ("MatMul", tf.matmul),
    "bmm": ("BatchMatMulV2", lambda x, y: tf.matmul(x[None], y[None])),
    "einsum": ("Einsum", lambda x, y: tf.einsum("ij,jk->ik", x, y)),
    "conv2d": ("Conv2D", lambda x, y: tf.nn.conv2d(image(x), kernel(y), 1, "SAME")),
    "conv3d": (
        "Conv3D",
        lambda x, y: tf.nn.conv3d(video(x), tf.reshape(y, (2, 2, 2, 1, 2)), (1,) * 5, "SAME"),
    ),
    "depthwise_conv2d": (
        "DepthwiseConv2dNative",
        lambda x, y: tf.nn.depthwise_conv2d(image(x), kernel(y), (1, 1, 1, 1), "SAME"),
    ),
    "conv_transpose2d": (
        "Conv2DBackpropInput",
        lambda x, y: tf.nn.conv2d_transpose(image(x), kernel(y), IMAGES, 1),
    ),
    "softmax": ("Softmax", lambda x, y: tf.nn.softmax(x)),
    "log_softmax": ("LogSoftmax", lambda x, y: tf.nn.log_softmax(x)),
    "softplus": ("Softplus", lambda x, y: tf.nn.softplus(x)),
    "cross_entropy": (
        "SparseSoftmaxCrossEntropyWithLogits",
        lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits([0, 1, 2, 3], x),
    ),
    "exp": ("Exp", lambda x, y: tf.exp(x)),
    "expm1": ("Expm1", lambda x, y: tf.math.expm1(x)),
    "log": ("Log", lambda x, y: tf.math.log(x)),
    "log1p": ("Log1p", lambda x, y: tf.math.log1p(x)),
    "pow": ("Pow", lambda x, y: tf.pow(x, 2.0)),
    "square": ("Square", lambda x, y: tf.square(x)),
    "sqrt": ("Sqrt", lambda x, y: tf.sqrt(x)),
    "rsqrt": ("Rsqrt", lambda x, y: tf.math.rsqrt(x)),
    "reciprocal": ("Reciprocal", lambda x, y: tf.math.reciprocal(x)),
    "cosh": ("Cosh", lambda x, y: tf.cosh(x)),
    "erf": ("Erf", lambda x, y: tf.math.erf(x)),
    "sum": ("Sum", lambda x, y: tf.reduce_sum(x)),
    "mean": ("Mean", lambda x, y: tf.reduce_mean(x)),
    "prod": ("Prod", lambda x, y: tf.reduce_prod(x)),
    "amax": ("Max", lambda x, y: tf.reduce_max(x)),
    "cumsum": ("Cumsum", lambda x, y: tf.cumsum(x)),
    "relu": ("Relu", lambda x, y: tf.nn.relu(x)),
    "elu": ("Elu", lambda x, y: tf.nn.elu(x)),
    "leaky_relu": ("LeakyRelu", lambda x, y: tf.nn.leaky_relu(x)),
    "sigmoid": ("Sigmoid", lambda x, y: tf.sigmoid(x)),
    "tanh": ("Tanh", lambda x, y: tf.tanh(x)),
    "abs": ("Abs", lambda x, y: tf.abs(x)),
    "add": ("AddV2", lambda x, y: x + x),
    "subtract": ("Sub", lambda x, y: x - x),
    "multiply": ("Mul", lambda x, y: x * x),
    "divide": ("RealDiv", lambda x, y: x / x),
    "maximum": ("Maximum", lambda x, y: tf.maximum(x, x)),
    "concat": ("ConcatV2", lambda x, y: tf.concat([x, x], 0)),
    "max_pool2d": ("MaxPool", lambda x, y: tf.nn.max_pool2d(image(x), 2, 1, "SAME")),
    "avg_pool2d": ("AvgPool", lambda x, y: tf.nn.avg_pool2d(image(x), 2, 1, "SAME")),
}

# canonical op -> functions that are that op, and have no op of their own in TensorFlow.
FUNCTIONS: dict[str, list[Call]] = {
    "layer_norm": [
        lambda x, y: norm_layer(keras.layers.LayerNormalization)(x),
        *(
            [lambda x, y: keras.ops.layer_normalization(x)]
            if hasattr(keras.ops, "layer_normalization")  # since Keras 3.9
            else []
        ),
    ],
    "rms_norm": [lambda x, y: keras.ops.rms_normalization(x)],
    "group_norm": [lambda x, y: norm_layer(keras.layers.GroupNormalization)(image(x))],
    "batch_norm": [lambda x, y: norm_layer(keras.layers.BatchNormalization)(x)],
    "normalize": [
        lambda x, y: tf.math.l2_normalize(x, 1),
        lambda x, y: keras.ops.normalize(x),
        lambda x, y: keras.layers.UnitNormalization()(x),
    ],
    "gelu": [lambda x, y: tf.nn.gelu(x), lambda x, y: keras.ops.gelu(x, approximate=False)],
    "gelu_tanh": [lambda x, y: tf.nn.gelu(x, approximate=True), lambda x, y: keras.ops.gelu(x)],
    "silu": [lambda x, y: tf.nn.silu(x), lambda x, y: keras.ops.silu(x)],
    "log_sigmoid": [lambda x, y: tf.math.log_sigmoid(x), lambda x, y: keras.ops.log_sigmoid(x)],
    "logsumexp": [lambda x, y: tf.reduce_logsumexp(x), lambda x, y: keras.ops.logsumexp(x)],
    "norm": [lambda x, y: tf.norm(x), lambda x, y: keras.ops.norm(x)],
    "var": [lambda x, y: tf.math.reduce_variance(x), lambda x, y: keras.ops.var(x)],
    "std": [lambda x, y: tf.math.reduce_std(x), lambda x, y: keras.ops.std(x)],
    "tensordot": [lambda x, y: tf.tensordot(x, x, 1), lambda x, y: keras.ops.tensordot(x, x, 1)],
    "mv": [lambda x, y: tf.linalg.matvec(x, tf.reshape(x, (-1,))[:4])],
    "mse_loss": [lambda x, y: keras.losses.mean_squared_error(x, x)],
    "l1_loss": [lambda x, y: keras.losses.mean_absolute_error(x, x)],
    "huber_loss": [lambda x, y: keras.losses.huber(x, x)],
    "kl_div": [lambda x, y: keras.losses.kl_divergence(x, x)],
    "cosine_similarity": [lambda x, y: keras.losses.cosine_similarity(x, x)],
    "binary_cross_entropy_with_logits": [
        lambda x, y: tf.nn.sigmoid_cross_entropy_with_logits(labels=x, logits=x)
    ],
}

POLICIES: dict[str, Callable[[str, str], amp.Policy]] = {
    "default": lambda op, low: amp.Policy("O1", low, execution="native"),
    "denied": lambda op, low: amp.Policy("O1", low, deny=[op], execution="native"),
    "allowed": lambda op, low: amp.Policy("O1", low, allow=[op], execution="native"),
}


def image(x: Any) -> Any:
    return tf.tile(tf.reshape(x, (1, 4, 4, 1)), (1, 1, 1, 2))


def kernel(y: Any) -> Any:
    return tf.reshape(y, KERNEL)


def video(x: Any) -> Any:
    return tf.reshape(x, (2, 2, 2, 2, 1))


LAYERS: dict[type, Any] = {}


def norm_layer(kind: type) -> Any:
    """One built layer of each kind: a tf.function makes no variables when it is traced again."""
    if kind not in LAYERS:
        with tf.init_scope():
            LAYERS[kind] = kind(groups=1) if kind is keras.layers.GroupNormalization else kind()
            LAYERS[kind].build(IMAGES if kind is keras.layers.GroupNormalization else (4, 4))
    return LAYERS[kind]


VALUES = np.linspace(0.1, 0.9, 16, dtype=np.float32).reshape(4, 4)


def inputs(dtype: str, other: str = "float32") -> tuple[tf.Tensor, tf.Tensor]:
    x = tf.constant(VALUES)
    return tf.cast(x, dtype), tf.cast(x, other)


def expected(policy: amp.Policy, op: str, arrives: str) -> str:
    return {"allow": policy.dtype, "deny": "float32", "promote": arrives}[policy.category(op)]


def in_region(call: Call, policy: amp.Policy) -> Call:
    def run(x: Any, y: Any) -> Any:
        with casting.region(policy):
            return call(x, y)

    return run


# -- every witness, asked about each op

EXPLAINED = (
    amp.Policy("O1", "bfloat16", execution="native"),
    amp.Policy("O1", "float16", lists="paddle", execution="native"),
    amp.Policy("O1", "bfloat16", lists="tensorflow", execution="native"),
    amp.Policy("O1", "float16", deny=["matmul", "relu"], allow=["exp"], execution="native"),
    amp.Policy("O2", "bfloat16", execution="native"),
)
# What computes in functions of several ops. (Keras itself takes the mean of 16-bit values in float32.)
WATCHED = {
    **{op: watched for op, (watched, _) in OPS.items()},
    "mse_loss": "Square",
    "normalize": "Mul",
    "svd": "Svd",
}
# Ops of several arrays, which are cast to one dtype even where they follow their inputs.
OF_SEVERAL = {
    *("matmul", "bmm", "einsum", "conv2d", "conv3d", "depthwise_conv2d", "conv_transpose2d"),
    *("add", "subtract", "multiply", "divide", "maximum", "concat"),
}  # fmt: skip
# What puts together beside a function what it takes.
PREPARES = ("Reshape", "Tile", "Shape", "StridedSlice")


@cache
def tables() -> list[ExplanationTable]:
    return [amp.explain(policy, "tensorflow") for policy in EXPLAINED]


# Keras bounds a norm by 1 / sqrt(epsilon), which is infinite in float16.
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("op", [*OPS, *FUNCTIONS])
def test_an_op_runs_in_the_dtype_of_its_category_by_every_witness(op: str) -> None:
    if op == "rms_norm" and not hasattr(keras.ops, "rms_normalization"):
        pytest.skip("this Keras has no rms_normalization")
    calls = [OPS[op][1]] if op in OPS else FUNCTIONS[op]
    for call, listed, arrives in product(calls, POLICIES, ("float32", "float16")):
        policy = POLICIES[listed](op, "float16")
        check_what_runs(op, call, policy, arrives)
        check_simulated_results(call, policy, arrives)
    check_what_is_explained(op, calls[0])


def check_what_runs(op: str, call: Call, policy: amp.Policy, arrives: str) -> None:
    """By the recorder; a function of several ops by its result, and by all that runs where it is denied."""
    dtype = expected(policy, op, arrives)
    for mode, recorder in RECORDERS.items():
        result, seen = recorder(in_region(call, policy), *inputs(arrives, arrives))
        ran = {each for name, each in seen if name not in PREPARES}
        where = (policy, arrives, mode)
        if op in OPS:
            assert {each for name, each in seen if name == WATCHED[op]} == {dtype}, where
        else:
            assert result.dtype.name == dtype, where
            assert policy.category(op) != "deny" or ran == {"float32"}, where


def check_simulated_results(call: Call, policy: amp.Policy, arrives: str) -> None:
    """They are in the dtypes of native ones, with float32's values, rounded once."""
    x, y = inputs(arrives, arrives)
    native = in_region(call, policy)(x, y)
    simulated = policy.replace(execution="simulated")
    result = in_region(call, simulated)(x, y)
    assert result.dtype == native.dtype, (simulated, arrives)
    if result.dtype == tf.float16:
        rounded = [tf.cast(tf.constant(np.asarray(v, np.float16)), tf.float32) for v in (x, y)]
        once = np.asarray(call(*rounded)).astype(np.float16)
        found = np.asarray(result).view(np.uint16)
        np.testing.assert_array_equal(found, once.view(np.uint16), f"{simulated!r}, {arrives}")


def check_what_is_explained(op: str, call: Call) -> None:
    """By the recorder, and a function also by its result; as native if nothing is cast for it."""
    for table in tables():
        row = table.op(op)
        for arrives in ("float32", table.policy.dtype) if ON_CPU else ():
            region = amp.autocast(table.policy, backend="tensorflow")
            result, seen = RECORDERS["eager"](region(call), *inputs(arrives, arrives))
            where = (table.policy, arrives, row)
            wanted = arrives if row.dtype == "inputs'" else row.dtype
            if op in WATCHED:
                assert {dtype for name, dtype in seen if name == WATCHED[op]} == {wanted}, where
            if op in FUNCTIONS:
                assert result.dtype.name == wanted, where
        cast = row.dtype != "inputs'" or op in OF_SEVERAL or op in FUNCTIONS
        assert row.by == ("ampbridge" if cast else "native"), (table.policy, row)


def test_an_op_that_has_no_low_kernel_is_explained() -> None:
    check_what_is_explained("svd", lambda x, y: tf.linalg.svd(x, compute_uv=False))


@pytest.mark.parametrize("op", ["matmul", "softmax", "relu", "gelu", "layer_norm"])
def test_bfloat16_follows_the_same_lists(op: str) -> None:
    call = OPS[op][1] if op in OPS else FUNCTIONS[op][0]
    for listed, (mode, recorder) in product(POLICIES, RECORDERS.items()):
        policy = POLICIES[listed](op, "bfloat16")
        result, _ = recorder(in_region(call, policy), *inputs("bfloat16"))
        assert result.dtype.name == expected(policy, op, "bfloat16"), (policy, mode)


def test_a_loss_object_computes_as_its_function() -> None:
    loss = keras.losses.MeanSquaredError()
    for listed in POLICIES.values():
        policy = listed("mse_loss", "float16")
        call = in_region(lambda x, y: loss(x, y), policy)
        result, seen = RECORDERS["eager"](call, *inputs("float16"))
        assert ("Sub", expected(policy, "mse_loss", "float16")) in seen, policy
        assert result.dtype == tf.float32, policy  # a Loss object reduces in its own dtype


@pytest.mark.parametrize("mode", RECORDERS)
@pytest.mark.parametrize("call", [tf.add, tf.maximum, tf.atan2, lambda x, y: tf.concat([x, y], 0)])
def test_mixed_inputs_are_promoted(call: Call, mode: str) -> None:
    result, _ = RECORDERS[mode](in_region(call, amp.Policy()), *inputs("float16"))
    assert result.dtype == tf.float32


@pytest.mark.parametrize("dtype", ["float64", "int32", "complex64"])
def test_other_dtypes_are_left_alone(dtype: str) -> None:
    x = tf.cast(tf.ones((4, 4)), dtype)
    with casting.region(amp.Policy()):
        assert tf.matmul(x, x).dtype.name == dtype
        assert tf.reduce_sum(x).dtype.name == dtype


LISTS = [amp.Policy("O1", "bfloat16", lists=x) for x in ("torch", "paddle", "tensorflow", "safe")]


@pytest.mark.parametrize("op", ["matmul", "softmax", "mean", "tanh", "erf", "sin"])
def test_every_list_set_holds(op: str) -> None:
    call = OPS[op][1] if op in OPS else lambda x, y: tf.sin(x)
    for policy in LISTS:
        result, _ = RECORDERS["eager"](in_region(call, policy), *inputs("bfloat16"))
        assert result.dtype.name == expected(policy, op, "bfloat16"), policy


def test_tensordot_is_a_product_and_no_dot_of_vectors() -> None:
    """The table has ``tf.tensordot`` under ``dot`` as well, which two list sets do not cast."""
    x, _ = inputs("float32")
    for policy in LISTS:
        with casting.region(policy):
            found = {tf.tensordot(x, x, 1).dtype.name, keras.ops.tensordot(x, x, 1).dtype.name}
        assert found == {expected(policy, "tensordot", "float32")}, policy


def test_ops_that_tensorflow_lacks_have_no_effect() -> None:
    missing = {name for name, op in op_table.ops().items() if not functions.has_effect(op)}
    assert {"addmm", "nll_loss", "grid_sample", "mish"} <= missing
    assert missing.isdisjoint({*OPS, *FUNCTIONS})
    explained = {row.op for row in tables()[0].ops if row.by == "absent"}
    assert missing == explained
