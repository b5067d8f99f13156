"""A rule that is accepted acts: every function of TensorFlow and Keras in the op table, denied and allowed.

A function is called with the first arguments of a few that it takes in plain float32. Denied, it returns
float32 for low values; allowed, low values for float32, where the kernels have them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import ampbridge as amp  # noqa: E402
from ampbridge.policies import op_table  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")

_numbers = np.random.default_rng(0)
MATRIX = (np.eye(4) * 2 + _numbers.uniform(0.1, 0.4, (4, 4))).astype(np.float32)
SQUARE = (MATRIX @ MATRIX.T / 8).astype(np.float32)
SERIES = _numbers.uniform(0.1, 0.9, (1, 8, 4)).astype(np.float32)
IMAGE = _numbers.uniform(0.1, 0.9, (1, 8, 8, 4)).astype(np.float32)
VOLUME = _numbers.uniform(0.1, 0.9, (1, 4, 4, 4, 4)).astype(np.float32)
KERNELS = [_numbers.uniform(0.1, 0.9, (2,) * n + (4, 4)).astype(np.float32) for n in (1, 2, 3)]
INDEX = np.array([0, 2, 1, 1])
Arguments = Callable[[Callable[[Any], Any]], tuple[Any, ...]]

# Each makes arguments; ``f`` makes tensors of the dtype that arrives.
OF_MATRICES: tuple[Arguments, ...] = (
    lambda f: (f(SQUARE),),
    lambda f: (f(SQUARE), f(MATRIX)),
    lambda f: ([f(SQUARE), f(MATRIX)],),
    lambda f: ([f(SQUARE), f(MATRIX)], 0),
    lambda f: (f(SQUARE), f(SQUARE), f(SQUARE)),
    lambda f: (f(SQUARE), 0),
    lambda f: (f(SQUARE), 0.5),
    lambda f: (f(SQUARE), 0.1, 0.9),
    lambda f: (f(SQUARE), f(SQUARE), 1),
    lambda f: (f(SQUARE), INDEX),
    lambda f: (f(SQUARE), INDEX[:, None], 1),
    lambda f: (INDEX, f(SQUARE)),
    lambda f: (f(SQUARE), INDEX[:3], 3),
    lambda f: (f(SQUARE), (2, 8)),
    lambda f: (f(SQUARE), (2, 4, 4)),
    lambda f: (f(SQUARE), [[1, 1], [1, 1]]),
    lambda f: (f(SQUARE), [0, 0], [2, 2]),
    lambda f: (f(SQUARE), (1, 0)),
    lambda f: (f(SQUARE), 2, 1),
    lambda f: (f(SQUARE), -1, 0),
    lambda f: (SQUARE > 0.2, f(SQUARE), f(MATRIX)),
    lambda f: (f(SQUARE), SQUARE > 0.2),
    lambda f: ("ij,jk->ik", f(SQUARE), f(MATRIX)),
    lambda f: (f(SQUARE[0]), f(SQUARE[1])),
    lambda f: (f(SQUARE), f(SQUARE[0])),
    lambda f: (f(SQUARE[:3, :3]), f(MATRIX[:3, :3])),
)
OF_SERIES: tuple[Arguments, ...] = (
    lambda f: (f(SERIES), 2, 1, "SAME"),
    lambda f: (f(SERIES), f(KERNELS[0]), 1, "SAME"),
    lambda f: (f(SERIES), f(KERNELS[0]), SERIES.shape, 1),
)
OF_VOLUMES: tuple[Arguments, ...] = (
    lambda f: (f(VOLUME), 2, 1, "SAME"),
    lambda f: (f(VOLUME), f(KERNELS[2]), (1,) * 5, "SAME"),
    lambda f: (f(VOLUME), f(KERNELS[2]), VOLUME.shape, 1),
)
OF_IMAGES: tuple[Arguments, ...] = (
    lambda f: (f(IMAGE), f(KERNELS[1]), 1, "SAME"),
    lambda f: (f(IMAGE), f(KERNELS[1]), (1,) * 4, "SAME"),
    lambda f: (f(IMAGE), f(KERNELS[1]), IMAGE.shape, 1),
    lambda f: (f(IMAGE), f(KERNELS[1]), f(KERNELS[1][:1, :1, :, :].repeat(4, 2)), 1, "SAME"),
    lambda f: (f(IMAGE), f(KERNELS[1]), f(KERNELS[1][:1, :1].repeat(4, 2)), (1,) * 4, "SAME"),
    lambda f: (f(IMAGE), (0, 1, 2)),
    lambda f: (f(IMAGE), 2, 1, "SAME"),
    lambda f: (f(IMAGE), 2),
    lambda f: (f(IMAGE), (4, 4)),
    lambda f: (f(IMAGE), 2, (4, 4, 4, 4)),
    lambda f: (f(IMAGE), f(IMAGE), f(IMAGE)),
)
OTHERS: tuple[Arguments, ...] = (
    lambda f: (f(SERIES), 4, 2),
    lambda f: (f(SERIES), 4, 2, 4),
    lambda f: ((f(SERIES), f(SERIES)),),
    lambda f: ((f(SERIES), f(SERIES)), 4, 2, 4),
    lambda f: (tf.complex(*[tf.cast(f(SERIES), tf.float32)] * 2),),
    lambda f: (tf.complex(*[tf.cast(f(SERIES), tf.float32)] * 2), 4, 2),
    lambda f: (f(SQUARE), f(SQUARE[0]), f(SQUARE[1]), f(SQUARE[2]), f(SQUARE[3]), 1e-3),
    lambda f: (f(SQUARE), f(SQUARE[0]), f(SQUARE[1]), -1),
    lambda f: (INDEX[:, None], f(SQUARE), (4, 4)),
    lambda f: (f(SQUARE), INDEX[:, None], f(SQUARE)),
    lambda f: (f(SERIES[0]), INDEX[None].repeat(8, 0)),
)  # fmt: skip


def arguments_for(spelling: str) -> tuple[Arguments, ...]:
    """TensorFlow aborts where convolutions and pools are handed another rank."""
    if not any(part in spelling for part in ("conv", "pool", "resize")):
        return OF_MATRICES + OTHERS + OF_IMAGES
    return OF_SERIES if "1d" in spelling else OF_VOLUMES if "3d" in spelling else OF_IMAGES


def functions() -> Iterator[tuple[str, str]]:
    for namespace in ("tensorflow_api", "keras_ops"):
        for spelling, (owner, *_) in op_table.native_names(namespace).items():
            if found(spelling) is not None:
                yield spelling, owner


def found(spelling: str) -> Any:
    root, *path = spelling.split(".")
    start = {"tf": tf, "keras": keras}[root]
    return functools.reduce(lambda owner, name: getattr(owner, name, None), path, start)


def floats(result: Any) -> set[str]:
    """The dtypes of floating-point numbers; complex ones are pairs of float32."""
    names = {x.dtype.name for x in tf.nest.flatten(result) if hasattr(x, "dtype")}
    return {"float32" if n == "complex64" else n for n in names if "float" in n or n == "complex64"}


def called(spelling: str) -> Arguments | None:
    """The first arguments that the function takes and makes floating-point numbers of."""
    for make in arguments_for(spelling):
        with suppress(Exception):
            if floats(found(spelling)(*make(tf.constant))):
                return make
    return None


# Of no floating-point numbers, or of arguments that stand in no line above.
UNCALLED = {
    *("extract_patches", "fused_batch_norm", "ctc_loss", "argmax", "argmin", "reduce_all", "reduce_any"),
    *("count_nonzero", "is_finite", "is_nan", "is_inf", "equal", "not_equal", "less", "less_equal"),
    *("greater", "greater_equal", "logical_and", "logical_not", "argsort", "segment_sum", "segment_max"),
    *("fill", "check_numerics", "categorical", "matrix_rank", "fftnd", "ifftnd", "rfftnd", "irfftnd"),
    *("all", "any", "isfinite", "isnan", "isinf", "affine_transform", "cast", "full"),
}  # fmt: skip
# Two ops share them: the bias follows what it is added to where `linear` is denied. A cast says its dtype.
LEFT_TO_THE_CALLER = {"tf.nn.bias_add", "tf.cast", "tf.identity"}
# Without low kernels on a CPU they run in float32.
NEVER_LOW = {
    *("local_response_normalization", "bincount", "erfinv", "lgamma", "digamma", "fractional_max_pool"),
    *("resize", "complex", "fake_quant_with_min_max_args", "logaddexp", "lstsq"),
}  # fmt: skip


@functools.cache
def calls() -> dict[tuple[str, str], Arguments]:
    found_all = {(spelling, owner): called(spelling) for spelling, owner in functions()}
    return {each: make for each, make in found_all.items() if make is not None}


def wrong(kind: str, arrives: str, wanted: str) -> dict[str, Any]:
    """What the functions returned instead of ``wanted``."""
    returned: dict[str, Any] = {}
    for (spelling, owner), make in calls().items():
        bare = spelling.rpartition(".")[2]
        never_low = bare in NEVER_LOW or op_table.ops()[owner].family in ("fft", "linalg")
        if spelling in LEFT_TO_THE_CALLER or (kind == "allow" and never_low):
            continue
        policy = amp.Policy("O1", "bfloat16", execution="native", **{kind: [owner]})
        try:
            with amp.autocast(policy, "tensorflow"):
                dtypes = floats(found(spelling)(*make(lambda v: tf.cast(tf.constant(v), arrives))))
        except Exception as error:  # whatever TensorFlow and Keras raise about a dtype
            returned[spelling] = error
            continue
        if dtypes != {wanted}:
            returned[spelling] = dtypes
    return returned


@pytest.mark.slow
@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_every_denied_function_returns_float32(low: str) -> None:
    assert wrong("deny", low, "float32") == {}


@pytest.mark.slow
def test_every_allowed_function_returns_low_values() -> None:
    assert wrong("allow", "float32", "bfloat16") == {}


@pytest.mark.slow
def test_no_function_is_left_out_silently() -> None:
    out = {spelling for spelling, owner in functions() if (spelling, owner) not in calls()}
    assert {spelling.rpartition(".")[2] for spelling in out} <= UNCALLED


SIGNALS: dict[str, Callable[[Any], Any]] = {
    "fft_rfft": lambda x: tf.signal.rfft(x),
    "fft_rfft2": lambda x: tf.signal.rfft2d(x),
    "stft": lambda x: tf.signal.stft(x, 4, 2),
    "lstsq": lambda x: keras.ops.lstsq(x, x),
    "eig": lambda x: tf.linalg.eig(x)[0],
}


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("op", SIGNALS)
def test_what_compares_dtypes_in_python_runs_in_float32(op: str, mode: str) -> None:
    """Denied or not: it takes no low values, as an op that has no low kernel."""
    x = tf.constant(SQUARE, tf.bfloat16)
    for lists in ({"deny": [op]}, {}, {"allow": [op]}):
        policy = amp.Policy("O1", "bfloat16", execution="native", **lists)

        def run(x: Any, policy: amp.Policy = policy) -> Any:
            with amp.autocast(policy, "tensorflow"):
                return SIGNALS[op](x)

        result = (tf.function(run) if mode == "graph" else run)(x)
        expected = SIGNALS[op](tf.cast(x, tf.float32))
        assert result.dtype == expected.dtype, policy
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("execution", ["native", "simulated"])
def test_a_gradient_that_is_registered_in_python_meets_what_ran(execution: str) -> None:
    """It refuses bfloat16; the list makes the op one that TensorFlow converts values for."""
    op, turn = "ImageProjectiveTransformV3", [[1.0, 0.1, 0, 0, 1, 0, 0, 0]]
    options = {"interpolation": "BILINEAR", "fill_mode": "REFLECT", "fill_value": 0.0}

    def loss(x: Any) -> Any:
        y = tf.raw_ops.ImageProjectiveTransformV3(
            images=x, transforms=turn, output_shape=[8, 8], **options
        )
        return tf.reduce_sum(tf.cast(y, tf.float32) ** 2)

    gradients = []
    region = amp.autocast(
        amp.Policy("O1", "bfloat16", deny=[f"tf:{op}"], execution=execution), "tensorflow"
    )
    x = tf.cast(tf.constant(IMAGE), tf.bfloat16)
    for run, values in ((region(loss), x), (loss, tf.cast(x, tf.float32))):
        with tf.GradientTape() as tape:
            tape.watch(values)
            total = run(values)
        gradients.append(tape.gradient(total, values))
    assert gradients[0].dtype == tf.bfloat16
    np.testing.assert_array_equal(gradients[0], tf.cast(gradients[1], tf.bfloat16))


def test_an_error_about_low_dtypes_says_what_to_list() -> None:
    def compares(x: Any) -> None:
        raise TypeError(f"Found incompatible dtypes, {x.dtype} and float32")

    x = tf.constant(SQUARE, tf.float16)
    with pytest.raises(TypeError) as raised, amp.autocast("O1", "tensorflow"):
        compares(x)
    assert "deny=['module:function']" in raised.value.__notes__[0]


def test_so_does_one_of_a_gradient_in_a_step() -> None:
    """TensorFlow's own, in Python: it lists the dtypes of its kernel, which reads bfloat16 nowhere."""

    def loss_fn(model: keras.Model, x: Any) -> Any:
        turned = tf.raw_ops.ImageProjectiveTransformV3(
            images=model(x),
            transforms=[[1.0, 0.1, 0, 0, 1, 0, 0, 0]],
            output_shape=[4, 4],
            interpolation="BILINEAR",
            fill_mode="REFLECT",
            fill_value=0.0,
        )
        return tf.reduce_mean(tf.cast(turned, tf.float32))

    model = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Conv2D(1, 1)])
    optimizer = keras.optimizers.SGD(0.1)

    def step(**options: Any) -> amp.TrainStep:
        policy = amp.Policy(
            "O1", "bfloat16", execution="native", output_dtype="bfloat16", **options
        )
        return amp.train_step(loss_fn, model, optimizer, policy=policy)

    x = np.ones((2, 4, 4, 1), np.float32)
    with pytest.raises(TypeError, match="bfloat16") as raised:
        step()(x)
    assert "deny=['tf:OP']" in raised.value.__notes__[0]
    assert step(deny=["tf:ImageProjectiveTransformV3"])(x).applied


class Own(keras.layers.Layer):
    """A layer with code of its own."""

    def __init__(self, code: Callable[[Any], Any]) -> None:
        super().__init__()
        self.code = code

    def call(self, x: Any) -> Any:
        return self.code(x)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def of_float32(x: Any) -> Any:
    traced = tf.function(lambda y: 2 * y).get_concrete_function(tf.TensorSpec(x.shape, tf.float32))
    return traced(x)


def back_in_float32(x: Any) -> Any:
    @tf.custom_gradient
    def same(y: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            if upstream.dtype != tf.float32:
                raise ValueError(f"a gradient of dtype {upstream.dtype.name}")
            return upstream

        return tf.identity(y), gradient

    return same(x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("code", [of_float32, back_in_float32])
def test_so_does_one_of_a_layer_wherever_it_is_raised(
    code: Callable[[Any], Any], compiled: bool, dtype: Any
) -> None:
    """In the call, in the gradient, or as a traced step runs."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), Own(code)])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    def loss(model: Any, x: Any) -> Any:
        return tf.reduce_mean(model(x))

    policy = amp.Policy("O1", dtype, execution="native")
    step = amp.train_step(loss, model, optimizer, policy=policy, compile=compiled)
    with pytest.raises((TypeError, ValueError, tf.errors.OpError)) as raised:
        step(SQUARE[:2])
    (hint,) = raised.value.__notes__
    assert "keep=['LAYER']" in hint
