"""Each op runs in the dtype that ``Policy.category`` says; the recorder looks from below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ampbridge.testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from recorder import RECORDERS  # noqa: E402

import ampbridge as amp  # noqa: E402
from ampbridge.policies import op_table  # noqa: E402
from ampbridge_tensorflow.autocast import casting  # noqa: E402

Call = Callable[[Any, Any], Any]
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


def inputs(dtype: str) -> tuple[tf.Tensor, tf.Tensor]:
    y = tf.reshape(tf.linspace(0.1, 0.9, 16), (4, 4))
    return tf.cast(y, dtype), y


def expected(policy: amp.Policy, op: str, arrives: str) -> str:
    return {"allow": policy.dtype, "deny": "float32", "promote": arrives}[policy.category(op)]


def in_region(call: Call, policy: amp.Policy) -> Call:
    def run(x: Any, y: Any) -> Any:
        with casting.region(policy):
            return call(x, y)

    return run


@pytest.mark.parametrize("arrives", ["float32", "float16"])
@pytest.mark.parametrize("mode", RECORDERS)
@pytest.mark.parametrize("listed", POLICIES)
@pytest.mark.parametrize("op", OPS)
def test_an_op_runs_in_the_dtype_of_its_category(
    op: str, listed: str, mode: str, arrives: str
) -> None:
    policy = POLICIES[listed](op, "float16")
    watched, call = OPS[op]
    x, y = inputs(arrives)
    if op in (
        "bmm",
        "matmul",
        "einsum",
        "conv2d",
        "conv3d",
        "depthwise_conv2d",
        "conv_transpose2d",
    ):
        y = tf.cast(y, arrives)  # promote is about one dtype here; mixed ones have their own test
    _, seen = RECORDERS[mode](in_region(call, policy), x, y)
    dtypes = {dtype for name, dtype in seen if name == watched}
    assert dtypes == {expected(policy, op, arrives)}


@pytest.mark.parametrize("op", ["matmul", "softmax", "relu", "gelu", "layer_norm"])
@pytest.mark.parametrize("mode", RECORDERS)
@pytest.mark.parametrize("listed", POLICIES)
def test_bfloat16_follows_the_same_lists(op: str, listed: str, mode: str) -> None:
    policy = POLICIES[listed](op, "bfloat16")
    call = OPS[op][1] if op in OPS else FUNCTIONS[op][0]
    result, _ = RECORDERS[mode](in_region(call, policy), *inputs("bfloat16"))
    assert result.dtype.name == expected(policy, op, "bfloat16")


# Keras bounds a norm by 1 / sqrt(epsilon), which is infinite in float16.
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("arrives", ["float32", "float16"])
@pytest.mark.parametrize("mode", RECORDERS)
@pytest.mark.parametrize("listed", POLICIES)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_a_function_is_one_op(op: str, listed: str, mode: str, arrives: str) -> None:
    if op == "rms_norm" and not hasattr(keras.ops, "rms_normalization"):
        pytest.skip("this Keras has no rms_normalization")
    policy = POLICIES[listed](op, "float16")
    for call in FUNCTIONS[op]:
        result, seen = RECORDERS[mode](in_region(call, policy), *inputs(arrives))
        dtype = expected(policy, op, arrives)
        assert result.dtype.name == dtype
        if policy.category(op) == "deny":  # what was put together beside it does not compute
            prepares = ("Reshape", "Tile", "Shape", "StridedSlice")
            assert {d for name, d in seen if name not in prepares} == {"float32"}


@pytest.mark.parametrize("listed", POLICIES)
def test_a_loss_object_computes_as_its_function(listed: str) -> None:
    policy = POLICIES[listed]("mse_loss", "float16")
    loss = keras.losses.MeanSquaredError()
    result, seen = RECORDERS["eager"](
        in_region(lambda x, y: loss(x, y), policy), *inputs("float16")
    )
    assert ("Sub", expected(policy, "mse_loss", "float16")) in seen
    assert result.dtype == tf.float32  # a Loss object reduces in its own dtype


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


@pytest.mark.parametrize("lists", ["torch", "paddle", "tensorflow", "safe"])
@pytest.mark.parametrize("op", ["matmul", "softmax", "mean", "tanh", "erf", "sin"])
def test_every_list_set_holds(op: str, lists: str) -> None:
    policy = amp.Policy("O1", "bfloat16", lists=lists)
    call = OPS[op][1] if op in OPS else lambda x, y: tf.sin(x)
    result, _ = RECORDERS["eager"](in_region(call, policy), *inputs("bfloat16"))
    assert result.dtype.name == expected(policy, op, "bfloat16")


@pytest.mark.parametrize("lists", ["torch", "paddle", "tensorflow", "safe"])
def test_tensordot_is_a_product_and_no_dot_of_vectors(lists: str) -> None:
    """The table has ``tf.tensordot`` under ``dot`` as well, which two list sets do not cast."""
    policy = amp.Policy("O1", "bfloat16", lists=lists)
    x, _ = inputs("float32")
    with casting.region(policy):
        found = {tf.tensordot(x, x, 1).dtype.name, keras.ops.tensordot(x, x, 1).dtype.name}
    assert found == {expected(policy, "tensordot", "float32")}


def test_ops_that_tensorflow_lacks_are_listed() -> None:
    missing = set(casting.ops_without_counterpart())
    assert {"addmm", "nll_loss", "grid_sample", "mish"} <= missing
    assert missing.isdisjoint({*OPS, *FUNCTIONS})
    for name, op in op_table.ops().items():
        names = [n for space in op_table.PREFIXES["tensorflow"] for n in op.names.get(space, ())]
        assert (name in missing) == (not names)


def test_a_rule_without_effect_is_said() -> None:
    policy = amp.Policy("O1", deny=["nll_loss", "softmax"])
    said = "TensorFlow has no nll_loss: .* no effect here"
    with pytest.warns(amp.AmpBridgeWarning, match=said), casting.region(policy):
        pass
