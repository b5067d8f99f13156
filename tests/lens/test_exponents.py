"""Exponents, held against NumPy's own float16."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampbridge_lens import Exponents

BORDERS = [
    0.0, -0.0, 2.0**-26, 2.0**-25, np.nextafter(np.float32(2.0**-25), np.float32(1)), 2.0**-24,
    2.0**-15, 2.0**-14, 1.0, 65504.0, np.nextafter(np.float32(65520), np.float32(0)), 65520.0,
    65536.0, 1e30, np.inf, -np.inf, np.nan, 1e-42,
]  # fmt: skip

numbers = st.floats(width=32) | st.sampled_from([float(x) for x in BORDERS])
arrays = st.lists(numbers, min_size=1, max_size=40).map(lambda x: np.array(x, np.float32))


def in_float16(x):
    with np.errstate(over="ignore"):
        return x.astype(np.float16)


def fraction(mask):
    return np.count_nonzero(mask) / mask.size


@given(arrays)
def test_fractions_are_those_of_a_cast_to_float16(x):
    found, low = Exponents.of(x), in_float16(x)
    assert found.overflowing == fraction(np.isinf(low))
    assert found.flushed == fraction((x != 0) & (low == 0))
    assert found.subnormal == fraction((np.abs(x) < 2.0**-14) & (low != 0))
    assert (found.total, found.zeros) == (x.size, np.count_nonzero(x == 0))
    assert (found.infinities, found.nans) == (np.isinf(x).sum(), np.isnan(x).sum())
    finite = np.abs(x[np.isfinite(x)])
    assert found.largest == (finite.max() if finite.size else 0.0)


@given(arrays)
def test_headroom_is_how_often_the_largest_doubles_and_stays_finite(x):
    headroom = Exponents.of(x).headroom
    largest = np.abs(x[np.isfinite(x)]).astype(np.float64).max(initial=0.0)
    if largest == 0:
        assert headroom is None
        return
    assert np.isfinite(in_float16(np.float64(largest) * 2.0**headroom))
    assert np.isinf(in_float16(np.float64(largest) * 2.0 ** (headroom + 1)))


@given(arrays, st.integers(-60, 60))
def test_another_scale_is_a_shift(x, powers):
    wide = x.astype(np.float64)
    assert Exponents.of(x).shifted(powers) == Exponents.of(wide * 2.0**powers)


@given(st.lists(arrays, min_size=1, max_size=4))
def test_merged_is_the_histogram_of_all(parts):
    assert Exponents.merged(map(Exponents.of, parts)) == Exponents.of(np.concatenate(parts))


def test_a_bin_holds_one_binary_exponent():
    found = Exponents.of(np.array([1.0, 1.5, 2.0, -3.9, 0.25], np.float32)).bins
    assert {exponent: b.values for exponent, b in found.items()} == {-2: 1, 0: 2, 1: 2}
    assert list(found) == sorted(found)


def test_an_empty_array_has_no_fractions():
    found = Exponents.of(np.zeros((0, 3), np.float32))
    assert (found.total, found.overflowing, found.flushed, found.headroom) == (0, 0.0, 0.0, None)


def test_it_is_plain_data():
    found = Exponents.of(np.array([1e-9, 3.0, np.inf], np.float32)).to_dict()
    assert found["exponents"] == {"-30": 1, "1": 1}
    assert found["overflowing"] == pytest.approx(1 / 3)
    assert found["flushed"] == pytest.approx(1 / 3)
    assert math.isclose(found["largest"], 3.0)
