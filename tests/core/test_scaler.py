"""GradScaler: its calls, several optimizers, its state, on a backend without a framework."""

import json
from collections import namedtuple
from dataclasses import fields

import ml_dtypes
import numpy as np
import pytest

import ampbridge as amp
from ampbridge import GradScaler
from ampbridge.adapters.backend import INF
from ampbridge.scaling.scale_rule import ScalerConfig
from ampbridge.scaling.scaler import Gradients


@pytest.fixture
def make(toy):
    """An optimizer whose stored gradient has the given value."""

    def optimizer(gradient):
        made = toy.Optimizer(toy.Model())
        made.gradient = np.array([gradient], np.float32)
        return made

    return optimizer


@pytest.fixture
def scaling(toy):
    """A scaler that has scaled a loss, as those have whose gradients are here put in place."""

    def make(*arguments, **settings):
        scaler = GradScaler(*arguments, **settings)
        scaler.scale(toy.array(1.0))
        return scaler

    return make


def test_a_loop_by_hand(toy, make):
    scaler, optimizer = GradScaler(8.0), make(4.0)
    assert scaler.scale(toy.array(1.5)) == 12.0
    assert scaler.step(optimizer) is True
    scaler.update()
    assert optimizer.model.weight == -0.5  # 4 / 8, stepped once
    assert scaler.get_scale() == 8.0


def test_a_float16_loss_is_widened_before_it_is_scaled(toy):
    scaled = GradScaler(2.0**16).scale(toy.array(1.0, np.float16))
    assert (scaled, scaled.dtype) == (65536.0, np.float32)


def test_losses_in_containers(toy):
    losses = {"a": toy.array(1.0), "b": [toy.array(2.0), (toy.array(3.0),)]}
    scaled = GradScaler(4.0).scale(losses)
    assert scaled == {"a": 4.0, "b": [8.0, (12.0,)]}


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_bad_gradient_skips_and_backs_off(make, bad, scaling):
    scaler, optimizer = scaling(8.0), make(bad)
    assert scaler.step(optimizer) is False
    assert scaler.found_inf(optimizer) is True
    scaler.update()
    assert (optimizer.steps, scaler.get_scale()) == (0, 4.0)


@pytest.mark.parametrize("order", [("good", "bad"), ("bad", "good")])
def test_each_optimizer_is_skipped_by_its_own_gradients(make, order, scaling):
    optimizers = {"good": make(1.0), "bad": make(np.inf)}
    scaler = scaling(8.0)
    applied = {name: scaler.step(optimizers[name]) for name in order}
    scaler.update()
    assert applied == {"good": True, "bad": False}
    assert scaler.get_scale() == 4.0  # any overflow backs the scale off, once


def test_two_overflows_in_one_iteration_back_off_once(make, scaling):
    scaler = scaling(8.0)
    for optimizer in (make(np.inf), make(np.nan)):
        scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4.0
    assert scaler.state_dict()["consecutive_skips"] == 1


def test_unscaling_early_shows_true_gradients_and_is_not_done_again(make, scaling):
    scaler, optimizer = scaling(8.0), make(4.0)
    grads = scaler.unscale(optimizer)
    assert grads[0] == 0.5
    scaler.step(optimizer)
    assert optimizer.model.weight == -0.5


def test_a_gradient_put_in_place_after_unscaling_counts(make, scaling):
    """As torch has it: after unscale_ the gradients are the caller's to change."""
    scaler, optimizer = scaling(8.0), make(4.0)
    scaler.unscale(optimizer)
    optimizer.gradient = np.array([2.0], np.float32)
    scaler.step(optimizer)
    assert optimizer.model.weight == -2.0


def test_a_16_bit_gradient_that_is_clipped_in_place_is_what_steps(make, scaling):
    scaler, optimizer = scaling(8.0), make(4.0)
    optimizer.gradient = optimizer.gradient.astype(np.float16)
    scaler.unscale(optimizer)
    optimizer.gradient *= 0.5
    scaler.step(optimizer)
    assert optimizer.model.weight == -0.25


def test_gradients_as_values(toy):
    scaler, model = GradScaler(8.0), toy.Model(slope=2.0)
    loss, grads = amp.value_and_grad(lambda m: np.float32(3.0), model, scaler=scaler)
    assert (loss, grads[0]) == (3.0, 16.0)
    grads = scaler.unscale(grads)
    assert grads[0] == 2.0
    scaler.step(toy.Optimizer(model), grads)
    scaler.update()
    assert model.weight == -2.0


def test_a_disabled_scaler_passes_through(make, scaling):
    scaler, optimizer = scaling(8.0, enabled=False), make(np.inf)
    assert scaler.scale(3.0) == 3.0
    assert scaler.step(optimizer) is True
    scaler.update()
    assert (scaler.get_scale(), scaler.state_dict()["scale"]) == (1.0, 8.0)


def test_minimize_is_step_and_update(make, scaling):
    scaler, optimizer = scaling(8.0, growth_interval=1), make(8.0)
    assert scaler.minimize(optimizer, scaled_loss=None) is True
    assert (optimizer.steps, scaler.get_scale()) == (1, 16.0)


def test_it_prints_back_short():
    assert repr(GradScaler(1024, growth_interval=7)) == "GradScaler(1024.0, growth_interval=7)"
    assert repr(GradScaler(enabled=False)) == "GradScaler(1.0, enabled=False)"


# -- mistakes


@pytest.mark.parametrize("call", ["step", "unscale"])
def test_a_loss_that_was_never_scaled_is_an_error(make, call):
    """As in torch. The weights would stand still: their gradients are divided by the scale."""
    scaler, optimizer = GradScaler(8.0), make(4.0)
    with pytest.raises(amp.CallOrderError, match="has multiplied no loss by"):
        getattr(scaler, call)(optimizer)
    assert (optimizer.steps, optimizer.gradient.tolist()) == (0, [4.0])


@pytest.mark.parametrize("call", ["step", "unscale"])
def test_a_forgotten_backward_is_an_error(make, scaling, call):
    scaler, optimizer = scaling(8.0), make(4.0)
    optimizer.gradient = None
    with pytest.raises(amp.CallOrderError, match="not one gradient"):
        getattr(scaler, call)(optimizer)
    assert optimizer.steps == 0


def test_gradients_of_an_unscaled_loss_are_an_error(toy):
    model = toy.Model(slope=2.0)
    optimizer = toy.Optimizer(model)
    _, grads = amp.value_and_grad(lambda m: np.float32(3.0), model)
    with pytest.raises(amp.CallOrderError, match="has multiplied no loss by"):
        GradScaler().step(optimizer, grads)
    assert (optimizer.steps, model.weight) == (0, 0.0)


@pytest.mark.parametrize("call", ["step", "unscale"])
def test_gradients_of_which_there_is_not_one_are_an_error(toy, scaling, call):
    scaler, optimizer = scaling(8.0), toy.Optimizer(toy.Model())
    nothing = Gradients([None], [optimizer.model.weight])
    arguments = {"step": (optimizer, nothing), "unscale": (nothing,)}
    with pytest.raises(amp.CallOrderError, match="not one gradient"):
        getattr(scaler, call)(*arguments[call])
    assert optimizer.steps == 0


def test_an_update_is_of_steps_since_the_last_one(make, scaling):
    scaler = scaling(8.0)
    scaler.step(make(4.0))
    scaler.update()
    with pytest.raises(amp.CallOrderError, match=r"update\(\) without a step"):
        scaler.update()


@pytest.mark.parametrize("call", ["step", "unscale"])
def test_a_state_that_is_loaded_ends_an_iteration(make, scaling, call):
    scaler, optimizer = scaling(8.0), make(4.0)
    saved = scaler.state_dict()
    getattr(scaler, call)(optimizer)
    scaler.load_state_dict(saved)
    with pytest.raises(amp.CallOrderError, match=r"update\(\) without a step"):
        scaler.update()
    assert scaler.step(optimizer) is True


BY_HAND = {
    "unscale": lambda scaler, optimizer: scaler.unscale(optimizer),
    "step": lambda scaler, optimizer: scaler.step(optimizer),
    "step with values": lambda scaler, optimizer: scaler.step(optimizer, [optimizer.gradient]),
}


@pytest.mark.parametrize("call", BY_HAND)
def test_float16_parameters_without_masters_are_refused(make, scaling, call):
    scaler, optimizer = scaling(8.0), make(4.0)
    optimizer.model.weight = np.zeros(1, np.float16)
    with pytest.raises(amp.ArgumentError, match=r"1 of the 1 parameters .* are float16"):
        BY_HAND[call](scaler, optimizer)
    assert optimizer.steps == 0


@pytest.mark.parametrize("call", BY_HAND)
@pytest.mark.parametrize(
    ("dtype", "enabled"), [(ml_dtypes.bfloat16, True), (np.float16, False)], ids=str
)
def test_other_low_parameters_are_not_refused(make, scaling, call, dtype, enabled):
    """bfloat16 has float32's range; and what is not scaled is the framework's matter."""
    scaler, optimizer = scaling(8.0, enabled=enabled), make(4.0)
    optimizer.model.weight = np.zeros(1, dtype)
    BY_HAND[call](scaler, optimizer)


def test_what_is_no_mistake(make, toy):
    """Several losses before a step, none between unscale and step, a scale that was loaded."""
    scaler, optimizers = GradScaler(8.0), [make(8.0), make(8.0)]
    for _ in range(2):
        scaler.scale([toy.array(1.0), toy.array(1.0)])
    scaler.load_state_dict({**scaler.state_dict(), "scale": 4.0})
    scaler.unscale(optimizers[0])
    assert [scaler.step(each) for each in optimizers] == [True, True]
    scaler.update()
    assert [each.model.weight for each in optimizers] == [-2.0, -2.0]


def test_containers_of_losses_keep_their_classes(toy):
    Losses = namedtuple("Losses", "value policy")
    losses = Losses(toy.array(1.0), {"entropy": [toy.array(2.0)]})
    scaled = GradScaler(8.0).scale(losses)
    assert type(scaled) is Losses
    assert (scaled.value, scaled.policy) == (8.0, {"entropy": [16.0]})


def test_alarms_sound_in_a_loop_by_hand(make, scaling):
    scaler = scaling(8.0, warn_after_skips=2, max_consecutive_skips=4)

    def iterate(value):
        scaler.step(make(value))
        scaler.update()

    iterate(np.inf)
    with pytest.warns(amp.AmpBridgeWarning, match="2 steps in a row were skipped"):
        iterate(np.nan)
    iterate(np.inf)
    with pytest.raises(amp.OverflowStuckError, match="4 steps in a row were skipped"):
        iterate(np.inf)
    assert scaler.get_scale() == 0.5
    iterate(1.0)


def test_a_loop_by_hand_hears_that_nan_may_come_of_gradients_that_nobody_clears(make, scaling):
    scaler = scaling(8.0)

    def iterate():
        scaler.step(make(np.nan))
        scaler.update()

    for _ in range(7):
        iterate()
    said = r"(?s)NaN in their gradients and no inf.*Hint: .*optimizer\.zero_grad\(\)"
    with pytest.warns(amp.AmpBridgeWarning, match=said):
        iterate()


def test_who_asks_for_an_overflow_hears_the_alarms_of_the_steps_before(make, scaling):
    scaler, optimizer = scaling(8.0, warn_after_skips=1), make(1.0)
    scaler.store.update(INF, scaler.config)  # as on a device, where nobody looks
    scaler.unscale(optimizer)
    with pytest.warns(amp.AmpBridgeWarning, match="1 steps in a row were skipped"):
        assert not scaler.found_inf(optimizer)


@pytest.mark.parametrize("told", [True, False])
def test_what_was_told_and_what_is_yet_to_be_told_goes_through_a_state(told):
    scaler, loaded = GradScaler(8.0, warn_after_skips=1), GradScaler()
    scaler.store.update(INF, scaler.config)  # as on a device, where nobody looks
    if told:
        with pytest.warns(amp.AmpBridgeWarning, match="1 steps in a row were skipped"):
            scaler.get_scale()
    loaded.load_state_dict(scaler.state_dict())
    assert loaded.state_dict() == scaler.state_dict()
    if told:
        loaded.get_scale()
    else:
        with pytest.warns(amp.AmpBridgeWarning, match="1 steps in a row were skipped"):
            loaded.get_scale()


def test_two_optimizers_with_nan_are_one_step_with_nan(make, scaling):
    scaler = scaling(8.0)
    for each in (make(np.nan), make(np.nan)):
        scaler.step(each)
    scaler.update()
    assert scaler.state_dict()["consecutive_nans"] == 1
    for each in (make(np.nan), make(np.inf), make(1.0)):
        scaler.step(each)
    scaler.update()
    assert scaler.state_dict()["consecutive_nans"] == 0


# -- state

SETTINGS = {
    "init_scale": 1024.0,
    "growth_factor": 4.0,
    "backoff_factor": 0.25,
    "growth_interval": 7,
    "backoff_interval": 3,
    "min_scale": 0.5,
    "max_scale": 4096.0,
    "dynamic": False,
    "enabled": False,
    "growth_delay": 2,
    "backoff_count": "until_growth",
    "at_max_scale": "keep",
    "at_min_scale": "raise",
    "warn_after_skips": 9,
    "max_consecutive_skips": None,
}


def test_the_round_trip_keeps_every_field(make):
    saved = {**GradScaler(**SETTINGS).state_dict(), "good_steps": 5, "bad_steps": 2}
    counters = ("consecutive_skips", "consecutive_nans", "skip_warnings", "nan_warnings")
    saved |= dict.fromkeys((*counters, "stuck_steps", "floor_steps"), 4)
    loaded = GradScaler()
    loaded.load_state_dict(json.loads(json.dumps(saved)))
    assert loaded.state_dict() == saved
    default = GradScaler().state_dict()
    assert {k for k in saved if saved[k] == default[k]} == {"version"}
    assert {field.name for field in fields(ScalerConfig)} <= {*SETTINGS}


def test_a_loaded_scaler_goes_on_where_the_saved_one_stopped(make, scaling):
    def run(scaler, history):
        scales = []
        for bad in history:
            scaler.step(make(np.inf if bad else 1.0))
            scaler.update()
            scales.append(scaler.get_scale())
        return scales

    history = [0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1]
    whole = run(scaling(64.0, growth_interval=3, backoff_interval=2), history)
    for cut in range(len(history)):
        first = scaling(64.0, growth_interval=3, backoff_interval=2)
        head = run(first, history[:cut])
        second = scaling()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert head + run(second, history[cut:]) == whole


TORCH = {
    "scale": 512.0,
    "growth_factor": 4.0,
    "backoff_factor": 0.25,
    "growth_interval": 9,
    "_growth_tracker": 4,
}
PADDLE = {
    "scale": np.array([512.0], np.float32),
    "incr_ratio": 4.0,
    "decr_ratio": 0.25,
    "incr_every_n_steps": 9,
    "decr_every_n_nan_or_inf": 3,
    "incr_count": 4,
    "decr_count": 0,
    "use_dynamic_loss_scaling": False,
}
KERAS = {"dynamic_scale": np.float32(512.0), "step_counter": np.int32(4), "dynamic_growth_steps": 9}


@pytest.mark.parametrize(
    ("foreign", "changed"),
    [
        (TORCH, {"growth_factor": 4.0, "backoff_factor": 0.25}),
        (
            PADDLE,
            {"growth_factor": 4.0, "backoff_factor": 0.25, "backoff_interval": 3, "dynamic": False},
        ),
        (KERAS, {}),
    ],
    ids=["torch", "paddle", "keras"],
)
def test_reads_other_scalers_states(foreign, changed):
    scaler = GradScaler()
    scaler.load_state_dict(foreign)
    common = {"scale": 512.0, "growth_interval": 9, "good_steps": 4}
    assert scaler.state_dict() == {**GradScaler().state_dict(), **common, **changed}


def test_a_tracker_past_its_interval_grows_on_the_next_step(make, scaling):
    """Torch compares with ==, so that such a tracker would never grow again."""
    scaler = scaling()
    scaler.load_state_dict({**TORCH, "_growth_tracker": 100})
    scaler.step(make(1.0))
    scaler.update()
    assert scaler.get_scale() == 2048.0


def test_counts_past_their_intervals_are_one_before_them():
    """Paddle compares with == as well, and would never back off again."""
    scaler = GradScaler()
    scaler.load_state_dict({**PADDLE, "incr_count": 100, "decr_count": 100})
    counts = scaler.state_dict()
    assert (counts["good_steps"], counts["bad_steps"]) == (9 - 1, 3 - 1)


def test_a_count_is_one_that_devices_can_hold():
    largest = 2**31 - 1  # an int32, as torch's and Paddle's scalers count in
    scaler = GradScaler(growth_interval=largest)
    scaler.load_state_dict({**scaler.state_dict(), "good_steps": largest - 1})
    before = scaler.state_dict()
    for count in (2**31, 2**32 - 1):
        with pytest.raises(amp.StateError, match="good_steps"):
            scaler.load_state_dict({**before, "good_steps": count})
    assert scaler.state_dict() == before
