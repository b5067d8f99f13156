"""What a framework's own scaler can be told; the frameworks' tests drive the real ones."""

import re

import pytest

import ampbridge as amp
from ampbridge import GradScaler
from ampbridge.scaling import native_scaler


@pytest.fixture(autouse=True)
def toy_has_a_scaler(toy, monkeypatch):
    """It follows torch's rule, and takes the interval alone."""
    expressible = frozenset({"growth_interval"})
    monkeypatch.setattr(native_scaler, "NATIVE", {"toyframework": ("torch", expressible)})
    monkeypatch.setattr("ampbridge.scaling.scaler.NATIVE", {"toyframework": ("torch", expressible)})


def test_a_state_that_it_can_express_arrives():
    ours = GradScaler.like("torch", init_scale=512.0, growth_interval=7)
    theirs = ours.to_native("toyframework")
    assert theirs.state == ours.state_dict()
    assert GradScaler.from_native(theirs).state_dict() == ours.state_dict()


def test_alarms_are_ours_and_do_not_count():
    ours = GradScaler.like("torch", warn_after_skips=3, max_consecutive_skips=4)
    assert ours.to_native("toyframework").state["max_consecutive_skips"] == 4


def test_what_it_cannot_express_is_listed():
    with pytest.raises(amp.UnsupportedError) as error:
        GradScaler(backoff_interval=2, growth_factor=4.0).to_native("toyframework")
    assert str(error.value) == (
        "The scaler of toyframework cannot follow growth_factor=4.0, backoff_interval=2, "
        "min_scale=5.960464477539063e-08, max_scale=16777216.0, at_max_scale='clamp'.\n"
        "Hint: scaler.to_native('toyframework', drop=['at_max_scale', 'backoff_interval', "
        "'growth_factor', 'max_scale', 'min_scale']) gives these up, or begin with "
        "GradScaler.like('torch')."
    )


def test_what_may_be_lost_can_be_named():
    bounds = ["min_scale", "max_scale", "at_max_scale"]
    assert GradScaler(8.0).to_native("toyframework", drop=bounds).state["scale"] == 8.0


def test_the_hint_gives_up_what_was_named_before_too():
    hint = "drop=['at_max_scale', 'max_scale', 'min_scale']"
    with pytest.raises(amp.UnsupportedError, match=re.escape(hint)):
        GradScaler().to_native("toyframework", drop=["min_scale"])


@pytest.mark.parametrize("drop", ["min_scale", ["min_scales"]])
def test_only_settings_can_be_dropped(drop):
    with pytest.raises(amp.ArgumentError, match="allowed are names of settings"):
        GradScaler().to_native("toyframework", drop=drop)


def test_a_framework_without_a_scaler():
    with pytest.raises(amp.ArgumentError, match="has no scaler of its own"):
        GradScaler().to_native("numpy")
