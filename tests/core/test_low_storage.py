"""The roundings of ``Policy.masters`` against ml_dtypes and arithmetic in float64."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from ampbridge.adapters.low_storage import are_bfloat16, joined, rounded_by_chance, split

BFLOAT16 = ml_dtypes.bfloat16
TINY = float(np.finfo(np.float32).smallest_subnormal)
LARGEST = float(ml_dtypes.finfo(BFLOAT16).max)


def rounded(values, draws):
    bits = np.asarray(values, np.float32).reshape(-1).view(np.int32)
    return rounded_by_chance(bits, np.asarray(draws, np.int32), np.where).view(np.float32)


def kept(values):
    upper, rest = split(np.asarray(values, np.float32).view(np.int32), np.where)
    return upper, rest.astype(np.int16)


def all_bfloat16():
    return np.arange(2**16, dtype=np.uint16).view(BFLOAT16).astype(np.float32)


def anything():
    """Bits of all kinds: subnormals, zeros, inf and NaN are among them."""
    bits = np.random.default_rng(0).integers(-(2**31), 2**31, 200_000).astype(np.int32)
    upper = np.arange(-(2**15), 2**15).astype(np.int32) << 16
    return np.concatenate([bits, *(upper + rest for rest in (0, 1, 0x7FFF, 0x8000, 0xFFFF))])


VALUES = {
    "representable": 1.5,
    "between": 1.5 + 2.0**-7 * 0.3,
    "in the middle": 1.0 + 2.0**-8,
    "just above one": 1.0 + 2.0**-23,
    "just below one": 1.0 - 2.0**-24,
    "just below the next": 1.5 + 2.0**-7 - 2.0**-23,
    "negative": -3.1,
    "small": 3.3e-30,
    "subnormal": 1000.3 * 2.0**-133,
    "least subnormal": TINY,
    "below half of the least bfloat16": 2.0**-133 * 0.01,
    "zero": 0.0,
    "large": 0.7 * LARGEST,
}


@pytest.mark.parametrize("name", VALUES)
def test_rounding_by_chance_is_unbiased(name):
    value = float(np.float32(VALUES[name]))
    draws = np.random.default_rng(1).integers(0, 2**16, 100_000)
    found = rounded(np.full(draws.shape, value), draws).astype(np.float64)
    assert np.array_equal(found, found.astype(BFLOAT16).astype(np.float64))
    neighbours = np.unique(found)
    assert len(neighbours) <= 2
    unit = 2.0 ** max(np.floor(np.log2(abs(value))) - 7, -133) if value else 0.0
    assert all(abs(neighbour - value) < unit or neighbour == value for neighbour in neighbours)
    standard_error = found.std() / np.sqrt(len(found))
    assert abs(found.mean() - value) <= 4 * standard_error + 2.0**-40 * abs(value)


@pytest.mark.parametrize("draw", [0, 1, 0x7FFF, 0x8000, 0xFFFF])
def test_what_is_a_bfloat16_stays_one(draw):
    values = all_bfloat16()
    assert np.array_equal(rounded(values, draw), values, equal_nan=True)


def test_each_draw_gives_a_neighbour_and_their_number_is_the_remainder():
    """Over all draws the mean is exact, which is more than unbiased."""
    draws = np.arange(2**16)
    for value in (1.0 + 2.0**-7 * 0.3, -(2.0**-130) * 1.37, 1e30):
        value = np.float32(value)
        found = rounded(np.full(draws.shape, value), draws).astype(np.float64)
        low, high = found.min(), found.max()
        values, counts = np.unique(found, return_counts=True)
        mean = sum(Fraction(float(x)) * int(n) for x, n in zip(values, counts, strict=True))
        assert mean / 2**16 == Fraction(float(value))
        assert low < value < high
        steps = np.array([low, high]).astype(BFLOAT16).view(np.int16).astype(int)
        assert abs(steps[1] - steps[0]) == 1


def test_both_halves_of_a_float32_are_kept():
    values = anything().view(np.float32)
    upper, rest = kept(values)
    back = joined(upper, rest.astype(np.int32), np.where).view(np.float32)
    assert np.array_equal(back, values, equal_nan=True)
    assert np.array_equal(np.signbit(back), np.signbit(values))
    low = upper.view(np.float32)
    in_the_middle = (anything() & 0xFFFF) == 0x8000
    with np.errstate(invalid="ignore"):
        assert np.array_equal(low, low.astype(BFLOAT16).astype(np.float32), equal_nan=True)
        nearest = values.astype(BFLOAT16).astype(np.float32)
    assert np.array_equal(low[~in_the_middle], nearest[~in_the_middle], equal_nan=True)


def test_a_weight_that_others_wrote_is_within_half_a_unit():
    finite = all_bfloat16()
    finite = finite[np.isfinite(finite)]
    for rest in (-(2**15), -1, 1, 2**15 - 1):
        bits = joined(finite.view(np.int32), np.int32(rest), np.where)
        back = bits.view(np.float32)
        assert np.isfinite(back).all()
        unit = (
            np.maximum(2.0 ** np.floor(np.log2(np.maximum(np.abs(finite), 1e-45))), 2.0**-126)
            / 2**7
        )
        assert (np.abs(back.astype(np.float64) - finite) <= unit / 2).all()


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (2, 3)])
def test_one_further_bit_is_seen_wherever_it_is(shape):
    values = np.full(shape, -1.5, BFLOAT16).astype(np.float32)
    assert are_bfloat16(values)
    assert are_bfloat16(all_bfloat16().reshape(256, 256).T)
    for place in np.ndindex(shape):
        for bit in range(16):
            changed = values.copy()
            changed.view(np.uint32)[place] ^= np.uint32(1 << bit)
            assert changed.astype(BFLOAT16).astype(np.float32)[place] != changed[place]
            assert not are_bfloat16(changed)
