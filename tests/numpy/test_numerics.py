"""Low precision is storage: float32 arithmetic and one rounding, forward and backward."""

from __future__ import annotations

from math import erf

import autograd
import autograd.numpy as anp
import ml_dtypes
import numpy as np
import pytest

from ampbridge import Policy
from ampbridge_numpy import nn
from ampbridge_numpy.backend import NumpyBackend
from ampbridge_numpy.functional import _normal_distribution

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
TERMS = 300  # of the longest sum in a product


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """``x`` in float64, rounded to ``dtype`` once."""
    return x.astype(np.float32).astype(DTYPES[dtype]).astype(np.float64)


def assert_product_rounded_once(
    found: np.ndarray, exact: np.ndarray, magnitude: np.ndarray, dtype: str
) -> None:
    """One rounding of a number that is as near to ``exact`` as a float32 sum of products is.

    Each BLAS adds in an order of its own. In any order the sum is off by at most one float32 rounding
    of ``magnitude``, the sum of the products' absolute values, for each term. Where the products
    cancel, this is many of the low dtype's steps. A sum in float16 is 8,192 times as far off.
    """
    slack = TERMS * 2.0**-24 * magnitude
    assert (rounded(exact - slack, dtype) <= found.astype(np.float64)).all()
    assert (found.astype(np.float64) <= rounded(exact + slack, dtype)).all()
    assert np.mean(found.astype(np.float64) == rounded(exact, dtype)) > 0.99


def in_region(policy: Policy, function: object) -> object:
    def call(*arrays: object) -> object:
        with NumpyBackend().autocast(policy):
            return function(*arrays)  # type: ignore[operator]

    return call


# Functions are looked up when they are called: one that was taken before is beyond reach.
PRODUCTS = {
    "matmul": (lambda a, b: anp.matmul(a, b), np.matmul, (64, 300), (300, 32)),
    "dot": (lambda a, b: anp.dot(a, b), np.dot, (64, 300), (300, 32)),
    "tensordot": (
        lambda a, b: anp.tensordot(a, b, axes=1),
        lambda a, b: np.tensordot(a, b, axes=1),
        (8, 300),
        (300, 4, 2),
    ),
    "einsum": (
        lambda a, b: anp.einsum("bik,bkj->bij", a, b),
        lambda a, b: np.einsum("bik,bkj->bij", a, b),
        (2, 8, 300),
        (2, 300, 6),
    ),
    "linear": (nn.linear, np.matmul, (2, 9, 300), (300, 32)),
    "conv2d": (
        nn.conv2d,
        lambda x, w: np.einsum(
            "ncijhw,ochw->noij",
            np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3)),
            w,
        ),
        (2, 30, 6, 6),
        (5, 30, 3, 3),
    ),
}


@every_dtype
@pytest.mark.parametrize("op", PRODUCTS)
def test_a_product_accumulates_in_float32_and_rounds_once(op: str, dtype: str) -> None:
    call, reference, shape_a, shape_b = PRODUCTS[op]
    a, b = normal(*shape_a), normal(*shape_b, seed=1)
    low_a, low_b = rounded(a, dtype), rounded(b, dtype)
    result = in_region(Policy("O1", dtype, allow=[op]), call)(a, b)
    assert result.dtype == DTYPES[dtype]
    magnitude = reference(np.abs(low_a), np.abs(low_b))
    assert_product_rounded_once(result, reference(low_a, low_b), magnitude, dtype)


@every_dtype
@pytest.mark.parametrize("op", PRODUCTS)
def test_gradients_of_a_product_round_once(op: str, dtype: str) -> None:
    """To the low dtype, as a Tensor Core's backward product does; then float32 for the parameter."""
    call, _, shape_a, shape_b = PRODUCTS[op]
    a, b = normal(*shape_a), normal(*shape_b, seed=1)
    low = in_region(Policy("O1", dtype, allow=[op]), call)
    g = normal(*np.shape(low(a, b)), seed=2).astype(DTYPES[dtype])
    values = [rounded(a, dtype), rounded(b, dtype), g.astype(np.float64)]
    for argument in (0, 1):
        actual = autograd.make_vjp(low, argument)(a, b)[0](g)
        # The same function on float64 arrays, outside of any region: autograd's own derivative.
        exact, magnitude = (
            autograd.make_vjp(call, argument)(x, y)[0](gradient)
            for x, y, gradient in (values, [np.abs(value) for value in values])
        )
        assert actual.dtype == np.float32
        assert (rounded(actual, dtype) == actual).all()
        assert_product_rounded_once(actual, exact, magnitude, dtype)


@every_dtype
@pytest.mark.parametrize("axis", [0, 1])
def test_a_sum_of_many_is_not_lost_in_low_precision(axis: int, dtype: str) -> None:
    """4096 ones: added up in bfloat16 they stop at 256, in float16 at 2048."""
    ones = np.ones((4096, 3) if axis == 0 else (3, 4096), DTYPES[dtype])
    with NumpyBackend().autocast(Policy("O1", dtype, allow=["sum"])):
        total = anp.sum(ones, axis=axis)
    assert total.dtype == DTYPES[dtype]
    assert total.astype(np.float32).tolist() == [4096.0] * 3


@every_dtype
def test_the_gradient_of_a_bias_is_a_sum_in_float32(dtype: str) -> None:
    def loss(bias: object) -> object:
        x, weight = np.zeros((4096, 2), np.float32), np.zeros((2, 3), np.float32)
        return anp.sum(in_region(Policy("O1", dtype), nn.linear)(x, weight, bias))  # type: ignore[operator]

    assert autograd.grad(loss)(np.zeros(3, np.float32)).tolist() == [4096.0] * 3


@every_dtype
def test_the_gradient_of_a_row_is_a_sum_in_float32(dtype: str) -> None:
    def loss(weight: object) -> object:
        with NumpyBackend().autocast(Policy("O1", dtype, allow=["embedding"])):
            rows = nn.embedding(np.zeros(4096, int), weight)
        return anp.sum(rows.astype(np.float32))

    gradient = autograd.grad(loss)(np.ones((2, 1), np.float32))
    assert gradient.tolist() == [[4096.0], [0.0]]


def test_every_float16_widens_to_itself() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    wide = NumpyBackend().cast(every[::-1], "float32")
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide, [float(x) for x in every[::-1]])
    assert NumpyBackend().cast(np.float16(0.1), "float32") == np.float16(0.1)


@every_dtype
def test_attention_takes_its_softmax_in_float32(dtype: str) -> None:
    """Scores apart by less than the low dtype's step still get different weights."""
    query = np.array([[[[32.0]]]], np.float32)
    key = np.array([[[[32.0], [32.0 + 1 / 4]]]], np.float32)  # products 1024 and 1032
    value = np.array([[[[0.0], [1.0]]]], np.float32)
    with NumpyBackend().autocast(Policy("O1", dtype)):
        result = nn.scaled_dot_product_attention(query, key, value)
    difference = 32.0 * (rounded(key, dtype)[0, 0, 1, 0] - 32.0)
    assert result.astype(float).item() == pytest.approx(1 / (1 + np.exp(-difference)), rel=1e-2)


@pytest.mark.parametrize("category", ["allow", "deny"])
def test_overflow_to_inf_gives_no_warning_and_only_there(category: str) -> None:
    """Warnings are errors in these tests."""
    large = np.array([2.0**17], np.float32)
    with NumpyBackend().autocast(Policy("O1", **{category: ["multiply"]})):
        result = anp.multiply(large, large)
        assert result.tolist() == [np.inf if category == "allow" else 2.0**34]
        with pytest.warns(RuntimeWarning, match="overflow"):
            anp.exp(large)


def test_python_numbers_and_float64_scalars_do_not_widen() -> None:
    low = np.ones(3, np.float16)
    with NumpyBackend().autocast(Policy("O1")):
        for number in (2, 0.5, np.float64(0.5), np.float32(0.5), np.sqrt(64), np.array(0.5)):
            assert anp.multiply(low, number).dtype == np.float16
            assert anp.divide(number, low).dtype == np.float16


@pytest.mark.parametrize("scalar", [np.float64(0.1), np.array(0.1)], ids=["scalar", "no axes"])
def test_a_float64_scalar_is_not_rounded_to_the_low_dtype(scalar: object) -> None:
    """7 * float16(0.1) is 0.69983, whose nearest float16 is not that of 0.7."""
    with NumpyBackend().autocast(Policy("O1")):
        result = anp.multiply(np.full(2, 7, np.float16), scalar)
    np.testing.assert_array_equal(result, np.full(2, 0.7, np.float16), strict=True)


def test_integers_do_not_widen() -> None:
    with NumpyBackend().autocast(Policy("O1")):
        for x in (np.ones(3, np.float16), np.ones(3, np.float32)):
            assert anp.multiply(x, np.arange(3)).dtype == x.dtype


def test_float64_arrays_were_asked_for() -> None:
    fine = np.array([[1 + 2.0**-40]])
    with NumpyBackend().autocast(Policy("O1")):
        result = anp.matmul(fine, np.ones((1, 1), np.float16))
    assert (result.dtype, result.item()) == (np.float64, fine.item())


def test_an_explicit_dtype_is_the_callers_decision() -> None:
    with NumpyBackend().autocast(Policy("O1")):
        assert anp.sum(np.ones(3, np.float16), dtype=np.float64).dtype == np.float64


def test_float16_with_bfloat16_meets_in_float32() -> None:
    both = np.ones(2, np.float16), np.ones(2, ml_dtypes.bfloat16)
    with NumpyBackend().autocast(Policy("O1")):
        assert anp.add(*both).dtype == np.float32


@every_dtype
def test_gradients_inside_of_a_region_have_their_inputs_dtype(dtype: str) -> None:
    """Where autograd's own derivatives (maximum, where, mean) fall to float64."""

    def loss(x: object) -> object:
        with NumpyBackend().autocast(Policy("O1", dtype)):
            low = anp.matmul(x, x)
            return anp.mean(anp.where(low > 0, anp.maximum(low, 0.1), 0.0))

    assert autograd.grad(loss)(normal(4, 4)).dtype == np.float32


@every_dtype
def test_gradients_have_the_bits_of_casts_written_by_hand(dtype: str) -> None:
    """``x`` is used five times: the order in which its gradients are summed shows in their last bits."""
    low, factor = DTYPES[dtype], normal(40, 40, seed=1)

    def in_a_region(x):
        with NumpyBackend().autocast(Policy("O1", dtype)):
            return anp.sum((x + anp.matmul(anp.matmul(x, x), x)) * factor * x)

    def by_hand(x):
        def wide(x):
            return x.astype(np.float32)

        def product(a, b):
            return anp.matmul(wide(a.astype(low)), wide(b.astype(low))).astype(low)

        cubed = product(product(x, x), x)
        return anp.sum((wide(x) + wide(cubed)) * factor * wide(x))

    x = normal(40, 40)
    found, expected = (autograd.grad(each)(x) for each in (in_a_region, by_hand))
    assert found.dtype == np.float32
    assert found.tobytes() == expected.tobytes()


def test_the_normal_distribution_is_accurate_to_float32() -> None:
    x = np.linspace(-6, 6, 2001)
    exact = np.array([(1 + erf(v / 2**0.5)) / 2 for v in x])
    assert np.abs(_normal_distribution(x) - exact).max() < 2e-7
    assert np.abs(_normal_distribution(x.astype(np.float32)) - exact).max() < 3e-7


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_normalization_reads_its_float32_weights_as_they_are(dtype):
    """As torch's and TensorFlow's kernels for low inputs and float32 weights do."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 3, 5, 5)).astype(np.float32)
    weight, bias = rng.normal(size=(2, 3)).astype(np.float32)
    low = np.dtype(getattr(ml_dtypes, dtype, dtype))
    with NumpyBackend().autocast(Policy("O1", dtype)):
        result = nn.batch_norm(x.astype(low), weight, bias)
    wide = x.astype(low).astype(np.float64)
    mean, var = wide.mean((0, 2, 3), keepdims=True), wide.var((0, 2, 3), keepdims=True)
    exact = (wide - mean) / np.sqrt(var + 1e-5) * weight[:, None, None] + bias[:, None, None]
    assert result.dtype == low
    same = result.astype(np.float32) == exact.astype(np.float32).astype(low).astype(np.float32)
    assert same.mean() > 0.99
