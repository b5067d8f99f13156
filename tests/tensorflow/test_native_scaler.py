"""Keras' LossScaleOptimizer beside ours: the same scale step by step, and each made from the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

import ampbridge as amp  # noqa: E402
from ampbridge.adapters.backend import FINITE, INF, NAN  # noqa: E402
from ampbridge.scaling.scale_rule import LARGEST_SCALE, SMALLEST_SCALE, HostStore, ScaleState  # noqa: E402
from ampbridge_tensorflow import LossScaleOptimizer  # noqa: E402
from ampbridge_tensorflow.backend import TensorflowBackend  # noqa: E402
from ampbridge_tensorflow.step.scaling import variable_store  # noqa: E402

BACKEND = TensorflowBackend()

GRADIENT = {FINITE: 0.0, INF: np.inf, NAN: np.nan}

# Four tests of random histories share the examples of a profile: 500 by default, 20,000 nightly.
SHARE = settings(max_examples=max(125, settings.default.max_examples))


@cache
def built_native(interval: int) -> Any:
    """A real one, built for one variable; its ``apply`` traced, as ``fit`` does, to be fast."""
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.0), dynamic_growth_steps=interval
    )
    parameters = [keras.Variable(0.0)]
    optimizer.build(parameters)
    apply = optimizer.apply
    traced = tf.function(lambda gradient: apply([gradient], parameters))
    optimizer.apply = lambda gradients, _: traced(*gradients)
    return optimizer


def native(scale: float = 2.0**15, interval: int = 2000) -> Any:
    optimizer = built_native(interval)
    optimizer.dynamic_scale.assign(scale)
    optimizer.step_counter.assign(0)
    return optimizer


def step(optimizer: Any, found: int) -> None:
    """One call of ``apply`` with a gradient of that kind, as Keras' training makes it."""
    parameters = BACKEND.parameters(optimizer.inner_optimizer)
    optimizer.apply([tf.constant(GRADIENT[found], tf.float32)], parameters)


def state_of(optimizer: Any) -> tuple[float, int]:
    return float(optimizer.dynamic_scale.numpy()), int(optimizer.step_counter.numpy())


def ours(scaler: amp.GradScaler) -> tuple[float, int]:
    state = scaler.state_dict()
    return state["scale"], state["good_steps"]


# -- histories

kinds = st.sampled_from([FINITE, FINITE, INF, NAN])
histories = st.lists(kinds, max_size=12)
scales = st.integers(-60, 60).map(lambda exponent: 2.0**exponent)


@given(history=histories, scale=scales, interval=st.integers(1, 4))
@SHARE
def test_the_preset_follows_the_real_one(history: Any, scale: float, interval: int) -> None:
    """The state in TensorFlow's variables, the real optimizer and the pure rule, step by step."""
    scaler = amp.GradScaler.like("keras", init_scale=scale, growth_interval=interval)
    theirs = native(scale, interval)
    on_device, on_host = variable_store(first(scale)), HostStore(first(scale))
    for found in history:
        step(theirs, found)
        on_device.update(tf.constant(found), scaler.config)
        on_host.update(found, scaler.config)
        assert numbers(on_device) == on_host.read()
        assert state_of(theirs) == on_host.read()[:2]


config_values = st.fixed_dictionaries(
    {
        "growth_factor": st.sampled_from([1.0, 1.5, 2.0, 1e9]),
        "backoff_factor": st.sampled_from([1e-9, 0.3, 0.5, 1.0]),
        "growth_interval": st.integers(1, 3),
        "backoff_interval": st.integers(1, 3),
        "dynamic": st.sampled_from([True, True, True, False]),
        "growth_delay": st.integers(0, 2),
        "backoff_count": st.sampled_from(["consecutive", "until_finite", "until_growth"]),
        "at_max_scale": st.sampled_from(["clamp", "keep"]),
        "min_scale": st.sampled_from([SMALLEST_SCALE, 2.0**-24, 1.0]),
        "max_scale": st.sampled_from([8.0, 2.0**24, LARGEST_SCALE]),
    }
)
# What was found; or settings that take the place of those before; or a state round trip.
events = st.lists(
    st.one_of(kinds, kinds, kinds, config_values, st.just("save and load")), max_size=12
)


@given(first_settings=config_values, history=events)
@SHARE
def test_the_state_on_the_device_follows_the_pure_rule(first_settings: Any, history: Any) -> None:
    """Any settings, changed on the way, with the state going through ``state_dict``."""
    scaler = amp.GradScaler(8.0, **first_settings)
    scaler.bind(BACKEND, tf.constant(0.0))
    on_host = HostStore(scaler.config.first_state(8.0))
    for event in history:
        if isinstance(event, int):
            scaler.store.update(tf.constant(event), scaler.config)
            on_host.update(event, scaler.config)
        elif isinstance(event, dict):
            changed = {**scaler.state_dict(), **event}
            scale = min(max(changed["scale"], event["min_scale"]), event["max_scale"])
            good = max(scaler.state_dict()["good_steps"], -event["growth_delay"])
            changed = {**changed, "scale": scale, "good_steps": good}
            scaler.load_state_dict(changed)
            good = min(good, event["growth_interval"] - 1)
            bad = min(changed["bad_steps"], event["backoff_interval"] - 1)
            on_host.write(on_host.read()._replace(scale=scale, good=good, bad=bad))
        else:
            other = amp.GradScaler()
            other.bind(BACKEND, tf.constant(0.0))
            other.load_state_dict(scaler.state_dict())
            scaler = other
        assert numbers(scaler.store) == on_host.read()


@given(
    history=histories,
    rest=histories,
    scale=scales,
    interval=st.integers(1, 4),
    begin_with_ours=st.booleans(),
)
@SHARE
@pytest.mark.slow
def test_the_state_goes_there_and_back_in_the_midst(
    history: Any, rest: Any, scale: float, interval: int, begin_with_ours: bool
) -> None:
    """From ours a real one, or the other way round, after some steps; both go on alike."""
    if begin_with_ours:
        scaler = amp.GradScaler.like("keras", init_scale=scale, growth_interval=interval)
        run(scaler, history)
        theirs = scaler.to_native("tensorflow", optimizer=built_sgd())
    else:
        theirs = native(scale, interval)
        for found in history:
            step(theirs, found)
        scaler = amp.GradScaler.from_native(theirs)
    assert state_of(theirs) == ours(scaler)
    back = amp.GradScaler.from_native(theirs)
    assert back.config == scaler.config
    for found in rest:
        step(theirs, found)
        run(scaler, [found])
        run(back, [found])
        assert state_of(theirs) == ours(scaler) == ours(back)


@given(history=histories, scale=scales, settings_=config_values)
@SHARE
@pytest.mark.slow
def test_our_optimizer_for_fit_follows_the_pure_rule(
    history: Any, scale: float, settings_: Any
) -> None:
    """``LossScaleOptimizer`` of ours by its own ``apply``; and it is read as what it is."""
    scale = min(max(scale, settings_["min_scale"]), settings_["max_scale"])
    scaler = amp.GradScaler(scale, **settings_, warn_after_skips=None)
    on_host = HostStore(scaler.config.first_state(scale))
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.0), scaler)
    optimizer.build([keras.Variable(0.0)])
    for found in history:
        step(optimizer, found)
        on_host.update(found, scaler.config)
        assert numbers(scaler.store) == on_host.read()
    assert amp.GradScaler.from_native(optimizer).state_dict() == scaler.state_dict()


# -- where Keras' own has no bounds


def test_the_scale_of_keras_falls_to_zero_and_ours_does_not() -> None:
    """After that its gradients are 0 / 0: it never steps again."""
    theirs, scaler = native(2.0**15), amp.GradScaler.like("keras")
    for _ in range(200):
        step(theirs, INF)
    run(scaler, [INF] * 200)
    assert state_of(theirs) == (0.0, 0)
    assert ours(scaler) == (SMALLEST_SCALE, 0)
    step(theirs, FINITE)
    assert float(theirs.scale_loss(tf.constant(1.0))) == 0.0
    run(scaler, [FINITE] * 2000)
    assert ours(scaler) == (2 * SMALLEST_SCALE, 0)


def test_the_scale_of_keras_grows_to_infinity_and_ours_does_not() -> None:
    theirs, scaler = (
        native(2.0**126, 1),
        amp.GradScaler.like("keras", init_scale=2.0**126, growth_interval=1),
    )
    for _ in range(3):
        step(theirs, FINITE)
    run(scaler, [FINITE] * 3)
    assert state_of(theirs)[0] == np.inf
    assert ours(scaler) == (2.0**127, 0)
    step(theirs, INF)
    assert state_of(theirs)[0] == np.inf  # for ever
    run(scaler, [INF])
    assert ours(scaler)[0] == 2.0**126


def test_under_two_to_the_minus_127_keras_makes_infinity_of_finite_gradients() -> None:
    """Dividing by a subnormal scale overflows unseen: the check came before it (as in pytorch#99640)."""
    weight = keras.Variable(1.0)
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), 2.0**-126)
    theirs.build([weight])
    for _ in range(10):
        theirs.apply([tf.constant(np.inf)], [weight])
    theirs.apply([tf.constant(1.0)], [weight])
    assert not np.isfinite(weight.numpy())
    scaler = amp.GradScaler.like("keras", init_scale=2.0**-126)
    run(scaler, [INF] * 10)
    [gradient], found = BACKEND.unscale([tf.constant(1.0)], scaler.store.read().scale)
    assert (float(gradient), int(found)) == (2.0**126, FINITE)


def test_a_collapsed_scaler_of_keras_is_refused() -> None:
    theirs = native()
    theirs.dynamic_scale.assign(0.0)
    with pytest.raises(amp.StateError, match="collapsed"):
        amp.GradScaler.from_native(theirs)


def test_an_infinite_scale_of_keras_comes_back_to_the_largest() -> None:
    theirs = native()
    theirs.dynamic_scale.assign(np.inf)
    with pytest.warns(amp.AmpBridgeWarning, match="becomes 1.7"):
        assert ours(amp.GradScaler.from_native(theirs)) == (LARGEST_SCALE, 0)


# -- what can and cannot be made


def test_an_optimizer_is_asked_for() -> None:
    with pytest.raises(amp.ArgumentError, match="wraps an optimizer, and none was given"):
        amp.GradScaler.like("keras").to_native("tensorflow")


def test_before_it_is_built_it_has_the_scale_alone() -> None:
    scaler = amp.GradScaler.like("keras", init_scale=64.0, growth_interval=5)
    theirs = scaler.to_native("tensorflow", optimizer=keras.optimizers.SGD(0.1))
    assert type(theirs) is keras.optimizers.LossScaleOptimizer
    assert ours(amp.GradScaler.from_native(theirs)) == (64.0, 0)
    run(scaler, [FINITE])
    with pytest.raises(amp.ArgumentError, match="1 finite steps have been counted"):
        scaler.to_native("tensorflow", optimizer=keras.optimizers.SGD(0.1))


def test_finite_steps_are_counted_on_from_where_they_were() -> None:
    scaler = amp.GradScaler.like("keras", init_scale=64.0, growth_interval=3)
    run(scaler, [FINITE, FINITE])
    theirs = scaler.to_native("tensorflow", optimizer=built_sgd())
    assert ours(amp.GradScaler.from_native(theirs)) == state_of(theirs) == (64.0, 2)
    step(theirs, FINITE)
    assert state_of(theirs) == (128.0, 0)


def test_a_disabled_scaler_has_no_counterpart() -> None:
    with pytest.raises(amp.UnsupportedError, match="cannot be disabled"):
        amp.GradScaler.like("keras", enabled=False).to_native("tensorflow", optimizer=built_sgd())


def test_settings_that_keras_lacks_are_listed() -> None:
    scaler = amp.GradScaler.like("keras", growth_factor=4.0, backoff_interval=3)
    with pytest.raises(amp.UnsupportedError, match=r"growth_factor=4.0, backoff_interval=3"):
        scaler.to_native("tensorflow", optimizer=built_sgd())


@pytest.mark.parametrize("wrapped", [native, lambda: LossScaleOptimizer(keras.optimizers.SGD(0.1))])
def test_one_that_scales_already_cannot_be_wrapped(wrapped: Any) -> None:
    with pytest.raises(amp.ArgumentTypeError, match="inner_optimizer"):
        amp.GradScaler.like("keras").to_native("tensorflow", optimizer=wrapped())


def test_an_optimizer_that_does_not_scale_is_no_scaler() -> None:
    with pytest.raises(amp.ArgumentTypeError, match="is a LossScaleOptimizer, not Adam"):
        amp.GradScaler.from_native(keras.optimizers.Adam())


# -- helpers


def first(scale: float) -> ScaleState:
    return ScaleState(scale, 0, 0, 0)


def numbers(store: Any) -> ScaleState:
    scale, *counts = (value.numpy() for value in store.read())
    return ScaleState(float(scale), *map(int, counts))


def run(scaler: amp.GradScaler, history: Sequence[int]) -> None:
    for found in history:
        scaler.store.update(found, scaler.config)


def built_sgd() -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.SGD(0.0)
    optimizer.build([keras.Variable(0.0)])
    return optimizer
