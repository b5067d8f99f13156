"""Random histories of training steps, held against the pure rule; the same on every framework.

The loss is one weight times a factor, so that a micro-batch's gradient is its factor. The factors, the
counts that they are divided by and the scales, powers of two, keep every number exact.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import ampbridge as amp
from ampbridge.adapters.backend import FINITE, INF, NAN
from ampbridge.scaling.scale_rule import HostStore, ScalerConfig, ScaleState

Make = Callable[..., amp.TrainStep]

GRADIENTS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
KINDS = {"inf": INF, "-inf": INF, "nan": NAN}
FIRST_SCALE = 2.0**4

found = st.sampled_from([*GRADIENTS, *["finite"] * 3])
settings = st.fixed_dictionaries(
    {
        "growth_factor": st.sampled_from([1.0, 2.0, 8.0]),
        "backoff_factor": st.sampled_from([0.25, 0.5]),
        "growth_interval": st.integers(1, 4),
        "backoff_interval": st.integers(1, 3),
        "growth_delay": st.integers(0, 2),
        "backoff_count": st.sampled_from(["consecutive", "until_finite", "until_growth"]),
        "at_max_scale": st.sampled_from(["clamp", "keep"]),
        "min_scale": st.sampled_from([2.0**-4, 1.0]),
        "max_scale": st.sampled_from([2.0**6, 2.0**20]),
        "dynamic": st.sampled_from([True, True, True, False]),
    }
)
# Before a micro-batch, if it is the first one of a step: the state goes to a new step, or new settings.
changes = st.none() | st.none() | st.just("save and load") | settings
histories = st.lists(st.tuples(found, changes), max_size=16)
histories_of_fixed_settings = st.lists(
    st.tuples(found, st.none() | st.none() | st.just("save and load")), max_size=16
)
ways = st.fixed_dictionaries(
    {
        "accumulate": st.sampled_from([1, 2, 4]),
        "on_overflow": st.sampled_from(["drop_step", "drop_microbatch"]),
    }
)

QUIET: dict[str, Any] = {"warn_after_skips": None, "max_consecutive_skips": None}


def check(
    make: Make,
    weight: Callable[[], float],
    first: dict[str, Any],
    way: dict[str, Any],
    history: list[tuple[str, Any]],
) -> None:
    """Steps of ``make(scaler=..., **way)`` train ``weight``, from 0 and with a rate of 1, as they should."""
    drops_step = way["on_overflow"] == "drop_step"
    step = make(scaler=amp.GradScaler(FIRST_SCALE, **first, **QUIET), **way)
    rule = HostStore(ScalerConfig(**first).first_state(FIRST_SCALE))
    config, taken, expected, steps = ScalerConfig(**first), [], 0.0, 0
    for number, (kind, change) in enumerate(history, start=1):
        if change is not None and not taken:
            state = json.loads(json.dumps(step.state_dict()))
            if change == "save and load":
                step = make(scaler=amp.GradScaler(), **way)
            else:
                config = ScalerConfig(**change)
                rule.write(fitting(rule.read(), config))
                state["scaler"] |= {**change, **dict(zip(STATE, rule.read(), strict=True))}
            step.load_state_dict(state)
        factor = float(number) if kind == "finite" else GRADIENTS[kind]
        result = step(np.float32(factor))
        assert result.scale == rule.read().scale
        if not drops_step:
            rule.update(KINDS.get(kind, FINITE), config)
            if kind != "finite":
                assert result.reason == kind.removeprefix("-")
                continue
        taken.append(factor)
        if len(taken) < way["accumulate"]:
            assert result.reason == "accumulating"
            continue
        whole = all(map(math.isfinite, taken))
        if drops_step:
            total = sum(taken)
            rule.update(FINITE if whole else NAN if math.isnan(total) else INF, config)
        expected -= sum(taken) / way["accumulate"] if whole else 0.0
        steps, taken = steps + 1, []
        assert (result.applied, result.step) == (whole, steps)
        assert weight() == expected
        state = step.state_dict()["scaler"]
        assert tuple(state[name] for name in STATE) == tuple(rule.read())


STATE = ("scale", "good_steps", "bad_steps", *ScaleState._fields[3:])


def fitting(state: ScaleState, config: ScalerConfig) -> ScaleState:
    """``state`` within the bounds of other settings, no counter past its interval."""
    return state._replace(
        scale=min(max(state.scale, config.min_scale), config.max_scale),
        good=max(min(state.good, config.growth_interval - 1), -config.growth_delay),
        bad=min(state.bad, config.backoff_interval - 1),
    )
