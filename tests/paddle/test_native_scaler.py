"""To and from ``paddle.amp.GradScaler``, which on a CPU switches itself off unless it is unlocked."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from paddle.amp import grad_scaler as native_module
from paddle_native_scaler import unlocked

import ampbridge as amp
from ampbridge import GradScaler

STATE_KEYS = {
    "scale": "scale",
    "incr_ratio": "growth_factor",
    "decr_ratio": "backoff_factor",
    "incr_every_n_steps": "growth_interval",
    "decr_every_n_nan_or_inf": "backoff_interval",
    "incr_count": "good_steps",
    "decr_count": "bad_steps",
    "use_dynamic_loss_scaling": "dynamic",
}


@unlocked()
def to_native(scaler: GradScaler, **options: Any) -> paddle.amp.GradScaler:
    return scaler.to_native("paddle", **options)


def test_it_is_refused_where_it_would_switch_itself_off() -> None:
    with pytest.raises(amp.UnsupportedError, match="switches itself off on 'cpu'") as error:
        GradScaler.like("paddle").to_native("paddle")
    assert "Hint: paddle.device.set_device('gpu')" in str(error.value)


def test_all_of_its_state_arrives() -> None:
    ours = GradScaler.like(
        "paddle",
        init_scale=512.0,
        growth_factor=3.0,
        backoff_factor=0.25,
        growth_interval=7,
        backoff_interval=3,
        dynamic=False,
    )
    ours.load_state_dict({**ours.state_dict(), "good_steps": 5, "bad_steps": 2})
    theirs = to_native(ours)
    assert isinstance(theirs, paddle.amp.GradScaler)
    state = theirs.state_dict()
    assert {ours: np.ravel(state[key])[0] for key, ours in STATE_KEYS.items()} == {
        key: ours.state_dict()[key] for key in STATE_KEYS.values()
    }
    assert theirs.scale(paddle.to_tensor([2.0])).item() == 1024.0


def test_there_and_back() -> None:
    ours = GradScaler.like("paddle", init_scale=2.0**-3, backoff_interval=2, growth_interval=5)
    ours.load_state_dict({**ours.state_dict(), "good_steps": 4, "bad_steps": 1})
    assert GradScaler.from_native(to_native(ours)).state_dict() == ours.state_dict()


def test_one_that_is_off() -> None:
    theirs = GradScaler.like("paddle", enabled=False).to_native("paddle")
    assert not theirs.is_enable()
    with pytest.warns(UserWarning, match="can only be enabled"):
        switched_off = paddle.amp.GradScaler(init_loss_scaling=2.0**10)
    for scaler in (theirs, switched_off):
        with pytest.warns(
            amp.AmpBridgeWarning, match=r"is off.*\nHint: .*like\('paddle'"
        ) as warned:
            assert not GradScaler.from_native(scaler).enabled
        assert warned[0].filename == __file__


def test_one_that_is_off_on_a_gpu_was_made_so(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = GradScaler.like("paddle", enabled=False).to_native("paddle")
    monkeypatch.setattr(paddle.device, "get_device", lambda: "gpu:0")
    assert not GradScaler.from_native(theirs).enabled


def test_bounds_are_beyond_it_and_can_be_dropped() -> None:
    with pytest.raises(amp.UnsupportedError, match="cannot follow min_scale"):
        to_native(GradScaler())
    theirs = to_native(GradScaler(8.0), drop=["min_scale", "max_scale", "at_max_scale"])
    assert theirs.state_dict()["scale"] == [8.0]


@pytest.mark.parametrize("factor", ["growth_factor", "backoff_factor"])
def test_a_factor_of_1_is_refused_as_its_constructor_does(factor: str) -> None:
    with pytest.raises(amp.UnsupportedError, match="Hint: GradScaler"):
        to_native(GradScaler.like("paddle", **{factor: 1.0}))
    names = {"growth_factor": "incr_ratio", "backoff_factor": "decr_ratio"}
    with unlocked(), pytest.raises(AssertionError):
        paddle.amp.GradScaler(**{names[factor]: 1.0})


@pytest.mark.parametrize("other", [paddle.nn.Linear(1, 1), paddle.optimizer.lr.StepDecay(0.1, 2)])
def test_what_is_no_scaler(other: Any) -> None:
    with pytest.raises(amp.ArgumentTypeError, match=r"is no paddle\.amp\.GradScaler"):
        GradScaler.from_native(other)


def test_its_older_name_is_one_too() -> None:
    """``AmpScaler``, with other defaults."""
    with unlocked():
        theirs = native_module.AmpScaler()
    ours = GradScaler.from_native(theirs)
    assert (ours.get_scale(), ours.config.growth_interval) == (2.0**15, 1000)
