"""Gradients of two frameworks against each other: layouts, what has no partner, what is not finite."""

import numpy as np
import pytest

from ampbridge.checkpoints.weights import Weight
from ampbridge_compare.gradients import error_of, exponents_of
from ampbridge_compare.runs import Run

RNG = np.random.default_rng(7)


def run(gradients, weights, **more):
    return Run("a run", "torch", "ampbridge", gradients=gradients, weights=tuple(weights), **more)


def dense(name, axes, shape):
    return Weight(name, "dense.kernel", axes, shape)


EXACT = RNG.normal(size=(3, 5))
REFERENCE = run({"layers.0.weight": EXACT}, [dense("layers.0.weight", "io", (3, 5))])


def test_a_transposed_layout_is_turned_around():
    """2 % off everywhere, in a layout that has outputs first."""
    found = run({"fc.weight": 1.02 * EXACT.T}, [dense("fc.weight", "oi", (5, 3))])
    error = error_of(found, REFERENCE, {})
    assert error.total == pytest.approx(0.02)
    (parameter,) = error.parameters
    assert (parameter.name, parameter.partner) == ("fc.weight", "layers.0.weight")
    assert (parameter.against, parameter.vanishes) == ("float64", False)


def test_the_total_is_of_all_parameters_as_one_vector():
    bias = Weight("layers.0.bias", "dense.bias", "o", (5,))
    exact = {"layers.0.weight": EXACT, "layers.0.bias": np.full(5, 8.0)}
    weights = [*REFERENCE.weights, bias]
    found = run({"layers.0.weight": EXACT, "layers.0.bias": np.full(5, 8.5)}, weights)
    error = error_of(found, run(exact, weights), {})
    distance = np.sqrt(5 * 0.25)
    assert error.total == pytest.approx(distance / np.sqrt(np.sum(EXACT**2) + 5 * 64))
    assert [p.error for p in error.parameters] == [0.0, pytest.approx(0.5 / 8)]


def test_another_layout_is_held_against_its_own_float32():
    """Three matrices in one, as torch has query, key and value: not guessed, and not left out."""
    fused = Weight("in_proj_weight", "other.in_proj_weight", "ab", (9, 5))
    own = {"in_proj_weight": RNG.normal(size=(9, 5))}
    found = run({"in_proj_weight": own["in_proj_weight"] * 1.001}, [fused])
    error = error_of(found, REFERENCE, own)
    (parameter,) = error.parameters
    assert parameter.against == "its own float32"
    assert error.total == pytest.approx(1e-3)
    assert error.own == 1


def test_without_any_reference_it_is_named_as_missing():
    fused = Weight("in_proj_weight", "other.in_proj_weight", "ab", (9, 5))
    both = run(
        {"fc.weight": EXACT.T, "in_proj_weight": np.ones((9, 5))},
        [dense("fc.weight", "oi", (5, 3)), fused],
    )
    error = error_of(both, REFERENCE, {})
    assert error.missing == ("in_proj_weight",)
    assert error_of(run({"in_proj_weight": np.ones((9, 5))}, [fused]), REFERENCE, {}) is None


def test_counts_that_differ_are_not_paired_by_order():
    """Two of a kind here and three there: which belongs to which would be a guess."""
    names = ("query", "key", "value")
    three = run(dict.fromkeys(names, EXACT), [dense(n, "io", (3, 5)) for n in names])
    two = run({"a": EXACT, "b": EXACT}, [dense(n, "io", (3, 5)) for n in "ab"])
    assert error_of(two, three, {}) is None


def test_a_gradient_that_is_not_finite_has_an_infinite_error_and_no_number_in_json():
    for wrong in (np.inf, np.nan):
        spoilt = EXACT.T.copy()
        spoilt[0, 0] = wrong
        error = error_of(
            run({"fc.weight": spoilt}, [dense("fc.weight", "oi", (5, 3))]), REFERENCE, {}
        )
        assert error.total == np.inf
        assert error.to_dict()["total"] is None


def test_a_gradient_that_is_zero_but_for_rounding_vanishes():
    weights = [*REFERENCE.weights, Weight("key.bias", "dense.bias", "o", (5,))]
    exact = run({"layers.0.weight": EXACT, "key.bias": np.full(5, 1e-17)}, weights)
    found = run({"layers.0.weight": EXACT, "key.bias": np.full(5, 1e-9)}, weights)
    error = error_of(found, exact, {})
    assert [p.vanishes for p in error.parameters] == [False, True]
    assert error.total < 1e-8


def test_exponents_are_of_all_gradients_together():
    merged = exponents_of({"a": np.array([1.0, 1.5, -0.25]), "b": np.array([0.0, 65536.0])})
    assert {e: b.values for e, b in merged.bins.items()} == {-2: 1, 0: 2, 16: 1}
    assert (merged.zeros, merged.total) == (1, 5)
