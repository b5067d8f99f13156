"""An alarm that looks now and then says what one that is told of each step says, only later."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ampbridge as amp
from ampbridge.backend import FINITE, INF, NAN
from ampbridge.scale_rule import HostStore, ScalerConfig
from ampbridge.skip_alarm import SkipAlarm, SkippedRun

CONFIG = ScalerConfig(min_scale=1.0, warn_after_skips=5, max_consecutive_skips=9, growth_interval=2)
histories = st.lists(st.sampled_from([FINITE, INF, NAN]), max_size=40)
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


def said(call, *arguments):
    """The warnings and the error of a call, by their words but for the scale."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call(*arguments)
        except amp.OverflowStuckError as error:
            caught.append(error)
    texts = (str(getattr(each, "message", each)) for each in caught)
    return [text.partition(";")[0].partition("\n")[0] for text in texts]


def counted(history, config):
    """Before each step its state, and after it the run of skipped steps that it ends, from a scale of 4."""
    store, skips, nans, at_floor = HostStore(config.first_state(4.0)), 0, 0, 0
    for found in history:
        before = store.read()
        store.update(found, config)
        due = config.dynamic and before.scale == 1.0 and before.bad + 1 >= config.backoff_interval
        skips = skips + 1 if found else 0
        nans = nans + 1 if found == NAN else 0
        at_floor = at_floor + due if found else 0
        yield found, before, SkippedRun(skips, nans, at_floor, store.read().scale)


@given(config=configs, history=histories)
def test_a_look_after_each_step_says_what_each_step_does(config, history):
    told, looking = SkipAlarm(), SkipAlarm()
    for found, before, run in counted(history, config):
        expected = said(told.observe, found, before, config)
        assert said(looking.look, run, config) == expected


@pytest.mark.parametrize(
    "looks, texts",
    [
        ([4, 6, 8], ["6 steps in a row were skipped"]),
        ([8], ["8 steps in a row were skipped"]),
        ([8, 8], ["8 steps in a row were skipped"]),
        ([8, 0, 8], ["8 steps in a row were skipped"] * 2),
        ([8, 6], ["8 steps in a row were skipped", "6 steps in a row were skipped"]),
        ([4, 10], ["10 steps in a row were skipped"]),
    ],
)
def test_what_is_seen_late_is_said_once_for_each_run(looks, texts):
    alarm = SkipAlarm()
    runs = [SkippedRun(skips, 0, 0, 2.0) for skips in looks]
    assert [text for run in runs for text in said(alarm.look, run, CONFIG)] == texts


def test_what_a_look_says():
    alarm = SkipAlarm()
    with pytest.warns(amp.AmpBridgeWarning) as caught:
        alarm.look(SkippedRun(9, 8, 0, 2.0), CONFIG)
    nans, skips = (str(each.message) for each in caught)
    assert nans.startswith("8 steps in a row had NaN in their gradients and no inf")
    assert skips.startswith("9 steps in a row were skipped; the loss scale is 2.0 now.")
    with pytest.raises(amp.OverflowStuckError, match=r"10 steps in a row .* is 1\.0 now"):
        alarm.look(SkippedRun(10, 0, 0, 1.0), CONFIG)
