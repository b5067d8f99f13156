"""Alarms: what one who looks seldom is told, and what one who looks at each step is told."""

import itertools
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ampbridge as amp
from ampbridge.adapters.backend import FINITE, INF, NAN
from ampbridge.scaling.scale_rule import HostStore, ScalerConfig, ScaleState
from ampbridge.scaling.skip_alarm import Told, sound

CONFIG = ScalerConfig(min_scale=1.0, warn_after_skips=5, max_consecutive_skips=9, growth_interval=2)
found = st.sampled_from([FINITE, INF, NAN])
configs = st.builds(
    ScalerConfig,
    growth_interval=st.integers(1, 2),
    backoff_interval=st.integers(1, 2),
    min_scale=st.just(1.0),
    dynamic=st.booleans(),
    at_min_scale=st.sampled_from(["stay", "raise"]),
    warn_after_skips=st.none() | st.integers(1, 6),
    max_consecutive_skips=st.none() | st.integers(1, 6),
)


class Watcher:
    """Looks at a state now and then, and notes what it is told, without the numbers."""

    def __init__(self, config):
        self.config, self.told, self.heard = config, Told(), set()

    def look(self, state):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                sound(self.told, state, self.config, in_own_loop=False)
            except amp.OverflowStuckError as error:
                caught.append(error)
        self.told = self.told.with_all_of(Told.due_in(state))
        texts = [str(getattr(each, "message", each)) for each in caught]
        self.heard |= {kind_of(text) for text in texts}
        return texts


def kind_of(text):
    kinds = {"NaN in their gradients": "nan", "at its minimum": "floor", "were skipped": "skips"}
    return next(kind for words, kind in kinds.items() if words in text)


def states(config, history):
    store = HostStore(config.first_state(4.0))
    for each in history:
        store.update(each, config)
        yield store.read()


@given(config=configs, history=st.lists(st.tuples(found, st.booleans()), max_size=40))
def test_looking_seldom_changes_no_answer(config, history):
    """Whatever one who looks at each step is told, one who looks now and then is told at the latest
    at the end; an error may take the place of a warning."""
    always, seldom = Watcher(config), Watcher(config)
    for state, (_, looks) in zip(
        states(config, [each for each, _ in history]), history, strict=True
    ):
        always.look(state)
        if looks:
            seldom.look(state)
            assert seldom.heard == always.heard or "floor" in always.heard
    if history:
        seldom.look(state)
        assert seldom.heard == always.heard or "floor" in always.heard


@given(config=configs, history=st.lists(found, max_size=30))
def test_an_older_state_says_nothing_new(config, history):
    watcher = Watcher(config)
    seen = list(states(config, history))
    for state in reversed(seen):
        told = watcher.look(state)
        assert state is seen[-1] or not told


def test_nans_that_finite_steps_part_are_not_in_a_row():
    """Ten of them, read every tenth step: that was told as a run once."""
    watcher, history = Watcher(CONFIG), [NAN, *[FINITE] * 9] * 10
    for step, state in enumerate(states(CONFIG, history)):
        assert step % 10 or watcher.look(state) == []


@pytest.mark.parametrize("every", [1, 2, 10, 40])
def test_the_warning_of_a_run_comes_however_seldom_one_looks(every):
    watcher, history = Watcher(CONFIG), [FINITE] * 3 + [INF] * 6 + [FINITE] * 31
    looks = [s for step, s in enumerate(states(CONFIG, history), 1) if step % every == 0]
    said = list(itertools.chain(*map(watcher.look, looks)))
    assert len(said) == 1
    assert ("It has ended since." in said[0]) == (every >= 10)


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        ([INF] * 5, "5 steps in a row were skipped; the loss scale is 1.0 now. Nothing is being"),
        ([INF] * 7, "7 steps in a row were skipped; the loss scale is 1.0 now. Nothing is being"),
        ([INF] * 7 + [FINITE], "5 steps in a row were skipped; the loss scale is 1.0 now. It has"),
        ([INF] * 9, "9 steps in a row were skipped"),
        ([NAN] * 8, "8 steps in a row had NaN in their gradients and no inf"),
    ],
)
def test_what_a_late_look_says(kinds, text):
    *_, last = states(CONFIG, kinds)
    assert Watcher(CONFIG).look(last)[0].startswith(text)


def test_a_run_that_is_too_long_is_an_error_at_its_number_and_from_there_on():
    watcher = Watcher(CONFIG)
    said = [watcher.look(state) for state in states(CONFIG, [INF] * 11)]
    assert [len(each) for each in said] == [0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1]


def test_what_was_told_is_taken_off_what_is_saved():
    state = ScaleState(8.0, 0, 0, 30, 0, 2, 0, 1, 0)
    told = Told(skip_warnings=1, stuck_steps=1)
    assert told.pending(state) == state._replace(skip_warnings=1, stuck_steps=0)
