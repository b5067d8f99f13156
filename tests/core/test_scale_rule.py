"""The scale rule against a reference written from its published wording, and worked examples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampbridge.adapters.backend import FINITE, INF
from ampbridge.scaling.scale_rule import (
    HostStore,
    ScalerConfig,
    ScaleState,
    next_state,
    where_on_host,
)


class WordedRule:
    """The rule as torch's and Paddle's documentation word it, with branches, in float32."""

    def __init__(self, scale, config):
        self.scale, self.config = np.float32(scale), config
        self.finite_run = self.overflow_run = 0

    def update(self, overflow):
        if overflow:
            self.finite_run, self.overflow_run = 0, self.overflow_run + 1
            if self.overflow_run == self.config.backoff_interval:
                self.overflow_run = 0
                lowered = self.scale * np.float32(self.config.backoff_factor)
                self.scale = max(lowered, np.float32(self.config.min_scale))
        else:
            self.overflow_run, self.finite_run = 0, self.finite_run + 1
            if self.finite_run == self.config.growth_interval:
                self.finite_run = 0
                raised = self.scale * np.float32(self.config.growth_factor)
                self.scale = min(raised, np.float32(self.config.max_scale))


def trajectory(init, config, history):
    store, scales = HostStore(ScaleState(init, 0, 0, 0)), []
    for overflow in history:
        store.update(int(overflow), config)
        scales.append(store.read().scale)
    return scales


def test_grows_on_the_nth_finite_step():
    config = ScalerConfig(growth_interval=3)
    assert trajectory(8.0, config, [0] * 6) == [8, 8, 16, 16, 16, 32]


def test_backs_off_at_once_and_starts_counting_anew():
    config = ScalerConfig(growth_interval=3)
    assert trajectory(8.0, config, [0, 0, 1, 0, 0, 0]) == [8, 8, 4, 4, 4, 8]


def test_backoff_interval_counts_consecutive_overflows():
    config = ScalerConfig(backoff_interval=2)
    assert trajectory(8.0, config, [1, 0, 1, 1, 1, 1]) == [8, 8, 8, 4, 4, 2]


def test_an_overflow_that_a_loaded_state_has_counted_ends_with_a_finite_step():
    """Paddle's state has ``decr_count``, and no count of skips in a row."""
    store, config = HostStore(ScaleState(8.0, 0, 1, 0)), ScalerConfig(backoff_interval=2)
    for overflow in (FINITE, INF):
        store.update(overflow, config)
    assert store.read().scale == 8.0


def test_stays_between_floor_and_ceiling():
    config = ScalerConfig(growth_interval=1, min_scale=2.0, max_scale=12.0)
    assert trajectory(8.0, config, [0, 0, 1, 1, 1, 1]) == [12, 12, 6, 3, 2, 2]


def test_never_reaches_zero_or_infinity():
    config = ScalerConfig(growth_interval=1, min_scale=2.0**-126, max_scale=2.0**127)
    assert trajectory(1.0, config, [1] * 300)[-1] == 2.0**-126
    assert trajectory(1.0, config, [0] * 300)[-1] == 2.0**127


def test_static_scale_still_counts_skips():
    config = ScalerConfig(growth_interval=1, dynamic=False)
    store = HostStore(ScaleState(8.0, 0, 0, 0))
    for overflow in (0, 1, 1):
        store.update(overflow, config)
    assert store.read() == ScaleState(8.0, 0, 0, 2)


def test_the_scale_is_rounded_to_float32_as_on_a_device():
    config, scale = ScalerConfig(backoff_factor=0.8), np.float32(3.0)
    for _ in range(5):
        scale = scale * np.float32(0.8)
    assert trajectory(3.0, config, [1] * 5)[-1] == float(scale)


configs = st.builds(
    ScalerConfig,
    growth_factor=st.sampled_from([1.0, 2.0, 4.0]),
    backoff_factor=st.sampled_from([0.25, 0.5, 1.0]),
    growth_interval=st.integers(1, 6),
    backoff_interval=st.integers(1, 4),
    min_scale=st.sampled_from([2.0**-24, 1.0, 4.0]),
    max_scale=st.sampled_from([16.0, 2.0**24]),
    at_min_scale=st.sampled_from(["stay", "raise"]),
    warn_after_skips=st.sampled_from([None, 2, 3]),
    max_consecutive_skips=st.sampled_from([None, 3, 4]),
)


@given(configs, st.lists(st.booleans(), max_size=60))
def test_equals_the_rule_as_worded(config, history):
    worded, expected = WordedRule(8.0, config), []
    for overflow in history:
        worded.update(overflow)
        expected.append(float(worded.scale))
    assert trajectory(8.0, config, history) == expected


@given(configs, st.lists(st.sampled_from([0, 1, 2]), max_size=30))
def test_runs_branch_free_on_arrays(config, history):
    """The same function on 0-d arrays with numpy's ``where``, as under a tracer."""
    plain = ScaleState(8.0, 0, 0, 0)
    traced = ScaleState(np.float32(8.0), *map(np.int32, plain[1:]))
    for found in history:
        traced = next_state(traced, np.int32(found), config, np.where)
        plain = next_state(plain, found, config, where_on_host)
        assert tuple(map(float, traced)) == tuple(map(float, plain))


@pytest.mark.parametrize("field", ["growth_interval", "backoff_interval"])
def test_intervals_take_numpy_integers(field):
    assert getattr(ScalerConfig(**{field: np.int64(3)}), field) == 3
