"""Conversions between float32 and float16, against NumPy's own, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from ampbridge_numpy.autocast import rounding

HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)


def around_halves() -> np.ndarray:
    """Every float16 under 2**15, the ties beside it, and what lies next to both."""
    halves = HALVES[np.abs(HALVES) < 2**15].astype(np.float32).view(np.uint32).astype(np.int64)
    beside = [halves + step for step in (0, 1, -1, 0xFFF, 0x1000, 0x1001, -0xFFF, -0x1000, -0x1001)]
    return np.concatenate(beside).clip(0, 2**32 - 1).astype(np.uint32).view(np.float32)


def random_numbers() -> np.ndarray:
    bits = np.random.default_rng(0).integers(0, 2**32, 1_000_000, dtype=np.uint32)
    return bits.view(np.float32)


def small_gradients() -> np.ndarray:
    generator = np.random.default_rng(1)
    return (generator.standard_normal(200_000) * 1e-6).astype(np.float32)


def converted(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x.astype(np.float16)


def below(x: np.ndarray, limit: float) -> np.ndarray:
    return x[np.abs(x) < limit]


def assert_same_bits(result: np.ndarray, expected: np.ndarray) -> None:
    assert result.dtype == expected.dtype
    assert result.strides == expected.strides
    bits = f"u{result.itemsize}"
    differs = result.view(bits) != expected.view(bits)
    assert not differs.any(), (result[differs][:5], expected[differs][:5])


ARRAYS = {
    "around every float16": below(around_halves(), 2**15),
    "random, under 2**15": below(random_numbers(), 2**15),
    "random": random_numbers()[:100_000],
    "small gradients": small_gradients(),
    "one beyond": np.append(small_gradients(), np.float32(65520)),
    "one inf": np.append(small_gradients(), np.float32(-np.inf)),
    "one NaN": np.append(small_gradients(), np.float32(np.nan)),
    "up to the largest": np.linspace(-70_000, 70_000, 50_000, dtype=np.float32),
    "zeros of both signs": np.array([0.0, -0.0] * 5_000, np.float32),
    "few": np.float32([1.0, -0.0, 1e-8, 70_000.0]),
    "two thousand": around_halves()[:2_000],
    "none": np.zeros((0, 3), np.float32),
    "transposed": small_gradients().reshape(400, 500).T,
    "every second": small_gradients()[::2],
}


@pytest.mark.parametrize("name", ARRAYS)
def test_to_halves(name: str) -> None:
    x = ARRAYS[name]
    before = x.copy()
    assert_same_bits(rounding.halves(x), converted(x))
    assert np.array_equal(x, before, equal_nan=True)


@pytest.mark.parametrize("name", ARRAYS)
def test_rounded_in_float32(name: str) -> None:
    x = ARRAYS[name]
    before = x.copy()
    assert_same_bits(rounding.rounded_to_halves(x), converted(x).astype(np.float32))
    assert np.array_equal(x, before, equal_nan=True)


@pytest.mark.parametrize("x", [HALVES, HALVES.reshape(256, 256).T, HALVES[::3]])
def test_widened(x: np.ndarray) -> None:
    assert_same_bits(rounding.widened(x), x.astype(np.float32))
