"""``GradScaler.like`` against the published rules, from their first step to their bounds."""

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_rules import RULES

import ampbridge as amp
from ampbridge import GradScaler
from ampbridge.scaling.presets import PRESETS
from ampbridge.scaling.scale_rule import LARGEST_SCALE, SMALLEST_SCALE, HostStore, ScaleState


def trajectory(name, history, **overrides):
    scaler = GradScaler.like(name, **overrides)
    store = HostStore(scaler.config.first_state(scaler.get_scale()))
    scales = [scaler.get_scale()]
    for overflow in history:
        store.update(int(overflow), scaler.config)
        scales.append(store.read().scale)
    return scales


def published(name, history, start=None):
    """The published rule's trajectory, up to where it raises."""
    rule = RULES[name]()
    if start is not None:
        rule.scale = type(rule.scale)(start)
    scales = [float(rule.scale)]
    for overflow in history:
        try:
            rule.update(overflow)
        except (OverflowError, RuntimeError):
            break
        scales.append(float(rule.scale))
    return scales


def test_there_is_a_rule_beside_each_preset():
    assert RULES.keys() == PRESETS.keys()


@pytest.mark.parametrize("name", PRESETS)
def test_the_source_is_named(name):
    assert re.search(r"\w+\.(py|h)\b", PRESETS[name].source)


# Runs of finite steps that end about where scales grow, among overflows.
lengths = st.one_of(st.integers(0, 3), *(st.integers(n - 2, n + 3) for n in (1000, 2000)))
histories = st.lists(st.tuples(lengths, st.integers(0, 4)), min_size=1, max_size=8).map(
    lambda runs: [bit for finite, bad in runs for bit in [0] * finite + [1] * bad]
)


@pytest.mark.parametrize("name", PRESETS)
@given(history=histories)
@settings(max_examples=30, deadline=None)
def test_the_scale_follows_the_published_rule(name, history):
    expected = published(name, history)
    assert trajectory(name, history)[: len(expected)] == expected


@pytest.mark.parametrize("name", PRESETS)
def test_a_long_history_follows_the_published_rule(name):
    draw = random.Random(11)
    history = [draw.random() < 0.0007 for _ in range(60_000)]
    expected = published(name, history)
    assert len(set(expected)) > 5
    assert trajectory(name, history)[: len(expected)] == expected


@pytest.mark.parametrize("name", PRESETS)
def test_at_the_floor(name):
    """Where the published rule ends at 0, ours stays at the smallest ordinary float32."""
    history = [1] * 300
    expected = published(name, history)
    actual = trajectory(name, history)[: len(expected)]
    assert actual == [max(scale, SMALLEST_SCALE) for scale in expected]


@pytest.mark.parametrize("name", PRESETS)
def test_at_the_ceiling(name):
    """Ours stays where its reciprocal is an ordinary float32; theirs goes on, some to inf."""
    highest = GradScaler.like(name).config.max_scale
    start, history = min(2.0**122, highest), [0] * 20_000
    with np.errstate(over="ignore"):
        expected = published(name, history, start)
    assert expected[-1] >= highest
    actual = trajectory(name, history, init_scale=start)
    assert actual == [min(scale, LARGEST_SCALE) for scale in expected]


# -- worked out by hand, so that the rules above are not our only reading of the sources


@pytest.mark.parametrize(
    "name, interval, scales",
    [
        ("torch", 3, [8, 8, 8, 16, 16, 16, 32]),
        ("paddle", 3, [8, 8, 8, 16, 16, 16, 32]),
        ("keras", 3, [8, 8, 8, 16, 16, 16, 32]),
        ("apex", 3, [8, 8, 8, 16, 16, 16, 32]),
        ("jmp", 3, [8, 8, 8, 16, 16, 16, 32]),
        ("deepspeed", 3, [8, 8, 8, 8, 16, 16, 16, 32]),
        ("flax", 4, [8, 8, 8, 8, 16, 16, 16, 16, 32]),
    ],
)
def test_when_a_scale_grows(name, interval, scales):
    history = [0] * (len(scales) - 1)
    assert trajectory(name, history, init_scale=8.0, growth_interval=interval) == scales


@pytest.mark.parametrize(
    "name, history, scales",
    [
        # Paddle's fleet: every second overflow in a row, by 0.8.
        ("paddle_fleet", "1101", [100, 100, 80, 80, 80]),
        # DeepSpeed and Megatron: one overflow is forgiven, until the scale grows again.
        ("deepspeed", "110111", [64, 64, 32, 32, 16, 8, 4]),
        ("megatron", "101", [64, 64, 64, 32]),
        # One to be forgiven again after growth.
        ("megatron", "1100011", [64, 64, 32, 32, 32, 64, 64, 32]),
    ],
)
def test_when_a_scale_backs_off(name, history, scales):
    overrides = {"init_scale": float(scales[0])}
    if name == "megatron":
        overrides["growth_interval"] = 3
    actual = trajectory(name, map(int, history), **overrides)
    assert actual == [float(np.float32(s)) for s in scales]


def test_overrides_take_the_place_of_defaults():
    scaler = GradScaler.like("deepspeed", init_scale=4.0, min_scale=0.5)
    assert scaler.get_scale() == 4.0
    assert scaler.config.min_scale == 0.5
    assert scaler.config.growth_delay == 1


def test_an_unknown_name_is_refused():
    with pytest.raises(amp.ArgumentError) as error:
        GradScaler.like("deepsped")
    assert str(error.value) == (
        "No preset 'deepsped'; allowed are 'torch', 'paddle', 'paddle_fleet', 'keras', 'apex', "
        "'deepspeed', 'megatron', 'flax', 'jmp' or 'mindspore'.\nHint: GradScaler.like('deepspeed')"
    )


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_s_state_loads_into_a_scaler_of_any_settings(name):
    scaler = GradScaler.like(name)
    other = GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    assert other.config == scaler.config


def test_a_delayed_growth_begins_below_zero():
    assert GradScaler.like("deepspeed").state_dict()["good_steps"] == -1
    assert GradScaler.like("deepspeed").store.read() == ScaleState(2.0**16, -1, 0, 0)
