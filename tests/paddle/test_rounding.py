"""Rounding is bit exact, in value and in gradient, against NumPy and ml_dtypes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import paddle
import pytest
from paddle_reference import LOW, rounded, trainable

from ampbridge_paddle.autocast import rounding


def interesting(dtype: str) -> np.ndarray:
    """Every 16-bit value, the midpoints between neighbours one ulp around, and random bits."""
    every = np.arange(2**16, dtype=np.uint16).view(LOW[dtype]).astype(np.float32)
    finite = np.sort(every[np.isfinite(every)])
    middle = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    around = [np.nextafter(middle, np.float32(end)) for end in (-np.inf, np.inf)]
    rng = np.random.default_rng(0)
    random = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    # Paddle's own cast to float16 is wrong here.
    tiny = (rng.uniform(1, 2, 50_000) * 2.0 ** rng.integers(-95, -70, 50_000)).astype(np.float32)
    edges = np.array([65519, 65519.996, 65520, 65536, 1e38, -0.0, np.inf, -np.inf], np.float32)
    values = np.concatenate([every, middle, *around, random, tiny, -tiny, edges])
    return values[~np.isnan(values)]


def assert_same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    wrong = got.view(np.uint32) != expected.view(np.uint32)
    assert not wrong.any(), (got[wrong][:5], expected[wrong][:5])


@pytest.mark.parametrize("at_once", [1000, 1_000_000])
@pytest.mark.parametrize("dtype", LOW)
def test_value_and_gradient_are_numpy_s(dtype: str, at_once: int) -> None:
    """Few numbers are rounded otherwise than many."""
    every = interesting(dtype)
    for values in np.array_split(every, -(-every.size // at_once)):
        incoming = values[::-1].copy()
        x = trainable(values)
        y = rounding.round_to(x, dtype)
        y.backward(paddle.to_tensor(incoming))
        assert_same_bits(y.numpy(), rounded(values, dtype))
        assert_same_bits(x.grad.numpy(), rounded(incoming, dtype))


@pytest.mark.parametrize("count", [3, 30_000])
@pytest.mark.parametrize("dtype", LOW)
def test_nan_stays_nan(dtype: str, count: int) -> None:
    values = np.resize(np.float32([np.nan, 1.0, -np.nan]), count)
    got = rounding.round_to(paddle.to_tensor(values), dtype).numpy()
    assert np.array_equal(got, values, equal_nan=True)


def test_paddle_s_own_cast_is_what_the_flush_is_for() -> None:
    tiny = paddle.to_tensor([6e-25, 3.3e-24])
    assert (tiny.astype("float16").astype("float32") > 1e-6).all()  # the bug: should be 0
    assert (rounding.round_to(tiny, "float16") == 0).all()


@pytest.mark.parametrize("dtype", LOW)
def test_it_is_paddle_that_rounds_here(dtype: str) -> None:
    """Else the tests above would be of NumPy, which stands in where the probe finds a wrong bit."""
    assert getattr(rounding, f"_to_{dtype}") is getattr(rounding, f"_through_{dtype}")


@pytest.mark.parametrize("wrong_from", [1, 1000])
@pytest.mark.parametrize("dtype", LOW)
def test_probe_rejects_truncation(dtype: str, wrong_from: int) -> None:
    """Paddlepaddle 3.0 truncated; there the probe must choose the other way."""
    kept_bits = {"float16": 0xFFFFE000, "bfloat16": 0xFFFF0000}[dtype]

    def truncating(x: paddle.Tensor) -> paddle.Tensor:
        if x.shape[0] < wrong_from:
            return rounding.round_to(x, dtype)
        return paddle.to_tensor((x.numpy().view(np.uint32) & kept_bits).view(np.float32))

    assert rounding.is_exact(lambda x: rounding.round_to(x, dtype), dtype)
    assert not rounding.is_exact(truncating, dtype)


@pytest.mark.parametrize("dtype", LOW)
def test_numpy_fallback(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    through = rounding._with_numpy(dtype)
    monkeypatch.setattr(rounding, f"_to_{dtype}", through)
    values = interesting(dtype)[::37].copy()
    x = trainable(values)
    y = rounding.round_to(x, dtype)
    y.backward(paddle.to_tensor(values))
    assert_same_bits(y.numpy(), rounded(values, dtype))
    assert_same_bits(x.grad.numpy(), rounded(values, dtype))


@pytest.mark.parametrize("count", [2, 20_000])
@pytest.mark.parametrize("dtype", LOW)
def test_second_derivative(dtype: str, count: int) -> None:
    x = trainable(np.resize(np.float32([0.5, 1.5]), count))
    y = (rounding.round_to(x, dtype) ** 3).sum()
    (slope,) = paddle.grad(y, [x], create_graph=True)
    slope.sum().backward()
    assert np.array_equal(x.grad.numpy(), np.resize([3.0, 9.0], count))  # 6x


def hooked(y: paddle.Tensor) -> paddle.Tensor:
    """With hooks that replace the gradient, look at it, do so again, and are gone."""
    y.register_hook(lambda gradient: gradient * 3)
    y.register_hook(lambda gradient: None)
    y.register_hook(lambda gradient: gradient + 1)
    y.register_hook(lambda gradient: gradient * 100).remove()
    return y


@pytest.mark.parametrize("in_place", ["nothing", "before", "after"])
@pytest.mark.parametrize("dtype", LOW)
def test_hooks_of_a_rounded_value_replace_its_gradient(
    dtype: str, in_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the same hooks do where nothing is rounded, in each of two backward passes."""

    def gradients(round_to: Callable[[paddle.Tensor], paddle.Tensor]) -> list[float]:
        x = trainable(np.float32([0.5]))
        y = round_to(x)
        if in_place == "before":
            y.scale_(8.0)
        hooked(y)
        if in_place == "after":
            y.scale_(8.0)
        first = paddle.grad(y * 2, [x], retain_graph=True)[0]
        return [first.item(), paddle.grad(y * 4, [x])[0].item()]

    expected = gradients(lambda x: x * 1)
    assert gradients(lambda x: rounding.round_to(x, dtype)) == expected
    monkeypatch.setattr(rounding, f"_to_{dtype}", rounding._with_numpy(dtype))
    assert gradients(lambda x: rounding.round_to(x, dtype)) == expected


def test_a_rounded_value_ends_with_its_last_reference() -> None:
    """Not at the next garbage collection: activations would pile up."""
    y = rounding.round_to(trainable(np.float32([0.5])), "float16")
    hooked(y)
    end = weakref.ref(y)
    gc.disable()
    try:
        del y
        assert end() is None
    finally:
        gc.enable()
