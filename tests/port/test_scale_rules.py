"""Scales move as in the source library: its rule, written out here as it stands there, step by step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampbridge import Recipe
from ampbridge.scaling.scale_rule import HostStore
from ampbridge_port.dialect import Argument, Call, Draft
from ampbridge_port.readers import apex, deepspeed
from ampbridge_port.reading import Place
from ampbridge_port.table import Table

HERE = Place("train.py", 1, 0, "")
OVERFLOWS = st.lists(st.booleans(), max_size=60)


def scales(draft, overflows):
    """The scale after each step, by the recipe."""
    sections = {}
    for key, value in draft.settings.items():
        sections.setdefault(key.partition(".")[0], {})[key.partition(".")[2]] = value
    scaling = Recipe.from_dict(sections).scaler
    store = HostStore(scaling.first_state(scaling.init_scale))
    for overflow in overflows:
        store.update(int(overflow), scaling)
        yield store.read().scale


def zero_scales(fp16, overflows):
    """DynamicLossScaler.update_scale of deepspeed/runtime/fp16/loss_scaler.py."""
    scale, last_overflow = 2.0 ** fp16["initial_scale_power"], -1
    shift, consecutive = fp16["hysteresis"], fp16["consecutive_hysteresis"]
    hysteresis = shift
    for iteration, overflow in enumerate(overflows):
        if overflow:
            if shift == 1 or hysteresis == 1:
                if scale == fp16["min_loss_scale"]:
                    return  # raises
                scale = max(scale / 2, fp16["min_loss_scale"])
            else:
                hysteresis -= 1
            last_overflow = iteration
        else:
            if consecutive:
                hysteresis = shift
            stable = (iteration - last_overflow) - 1
            if stable > 0 and stable % fp16["loss_scale_window"] == 0:
                if not consecutive:
                    hysteresis = shift
                scale *= 2
        yield scale


def fused_scales(fp16, overflows):
    """FP16_Optimizer._update_scale of deepspeed/runtime/fp16/fused_optimizer.py, for no ZeRO."""
    scale, last_overflow = 2.0 ** fp16["initial_scale_power"], -1
    for iteration, overflow in enumerate(overflows):
        if overflow:
            scale = max(scale / 2, fp16["min_loss_scale"])
            last_overflow = iteration
        else:
            stable = (iteration - last_overflow) - 1
            if stable > 0 and stable % fp16["loss_scale_window"] == 0:
                scale *= 2
        yield scale


@pytest.mark.parametrize("stage, rule", [(0, fused_scales), (2, zero_scales)])
@given(
    fp16=st.fixed_dictionaries(
        {
            "initial_scale_power": st.integers(2, 8),
            "loss_scale_window": st.integers(1, 5),
            "hysteresis": st.integers(1, 4),
            "consecutive_hysteresis": st.booleans(),
            "min_loss_scale": st.sampled_from([1, 2, 4]),
        }
    ),
    overflows=OVERFLOWS,
)
def test_deepspeed(stage, rule, fp16, overflows):
    draft = Draft()
    config = {"fp16": {"enabled": True, **fp16}, "zero_optimization": {"stage": stage}}
    deepspeed.configure(Table.of(config, HERE), draft)
    expected = list(rule(fp16, overflows))
    assert list(scales(draft, overflows))[: len(expected)] == expected


def apex_scales(smallest, largest, window, overflows):
    """LossScaler.update_scale of apex/amp/scaler.py; its window is 2000, its floor optional."""
    scale, unskipped = min(largest, 2.0**16), 0
    for overflow in overflows:
        if overflow:
            scale = max(smallest, scale / 2) if smallest else scale / 2
            unskipped = 0
        else:
            unskipped += 1
        if unskipped == window:
            scale = min(largest, scale * 2)
            unskipped = 0
        yield scale


@given(
    smallest=st.sampled_from([None, 1.0, 256.0]),
    largest=st.sampled_from([2.0**10, 2.0**17, 2.0**24]),
    window=st.integers(1, 4),
    overflows=OVERFLOWS,
)
def test_apex(smallest, largest, window, overflows):
    passed = {"min_loss_scale": smallest, "max_loss_scale": largest}
    arguments = {
        name: Argument(HERE, lambda value=value: value) for name, value in passed.items() if value
    }
    draft = Draft()
    apex.initialize(Call("apex.amp.initialize", HERE, arguments), draft)
    draft.set("scaler.growth_interval", window)  # apex has no argument for it: 2000 steps are long
    assert list(scales(draft, overflows)) == list(apex_scales(smallest, largest, window, overflows))
