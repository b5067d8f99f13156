"""The dynamic loss-scale rule. It is written once, here.

    finite:      good += 1; bad = 0
                 if good == growth_interval:   scale = min(scale * growth_factor, max_scale);  good = 0
    not finite:  bad += 1; good = 0
                 if bad == backoff_interval:   scale = max(scale * backoff_factor, min_scale); bad = 0

This is torch's rule (``_amp_update_scale_``) with Paddle's ``decr_every_n_nan_or_inf`` (consecutive)
and with a floor and a ceiling, which torch, Paddle and Keras lack: there a scale can reach 0 or inf.

The differences of other scalers are settings of the same rule: finite steps that do not count
(``growth_delay``), when the count of overflows starts again (``backoff_count``), and whether the scale
stops at the ceiling or skips the growth (``at_max_scale``).

The same rule counts the skipped steps for the alarms, on the device of the state, so that no alarm is
lost if the state is read rarely; ``ampbridge.scaling.skip_alarm`` gives the alarms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ampbridge.adapters.backend import FINITE, NAN, Scalar
from ampbridge.errors import ArgumentError, ArgumentTypeError, listed
from ampbridge.errors.flags import checked_flag

# Below 2**-126 the reciprocal of a float32 scale overflows, and finite gradients silently become NaN
# (pytorch#99640); above 2**127 the scale itself overflows.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, 2.0**127

BackoffCount = Literal["consecutive", "until_finite", "until_growth"]
AtMaxScale = Literal["clamp", "keep"]
AtMinScale = Literal["stay", "raise"]

# inf times 0, and inf minus inf, are NaN: a scale that is only too high may cause NaN without inf.
# After so many steps it has fallen by a factor of 256.
NANS_BEFORE_WARNING = 8

BACKOFF_COUNTS = ("consecutive", "until_finite", "until_growth")
AT_MAX_SCALE = ("clamp", "keep")
AT_MIN_SCALE = ("stay", "raise")

Where = Callable[[Any, Any, Any], Any]
"""``where(condition, a, b)``: an if-expression on native scalars."""


ALARMS = slice(5, None)
"""Where a ``ScaleState`` has its counts of alarms."""


class ScaleState(NamedTuple):
    """The state of the scaler between steps, as native scalars.

    ``scale`` is float32 on every device, so that every backend rounds it in the same way. The last
    four counts only grow, by one each time an alarm is due. A reader compares them with the counts of
    its last read, and so misses no alarm.

    Attributes:
        good, bad: the rule's counts of finite and overflowed steps.
        consecutive_skips: the overflowed steps in a row, up to now.
        consecutive_nans: the steps in a row, up to now, that had NaN but no inf.
        skip_warnings: how often ``warn_after_skips`` skips in a row were reached.
        nan_warnings: how often ``NANS_BEFORE_WARNING`` steps in a row had NaN but no inf.
        stuck_steps: the skipped steps from ``max_consecutive_skips`` in a row on.
        floor_steps: overflows that would have lowered a scale at its minimum, if that is an error.
    """

    scale: Scalar
    good: Scalar
    bad: Scalar
    consecutive_skips: Scalar
    consecutive_nans: Scalar = 0
    skip_warnings: Scalar = 0
    nan_warnings: Scalar = 0
    stuck_steps: Scalar = 0
    floor_steps: Scalar = 0

    def on_host(self) -> ScaleState:
        """The same state as Python numbers. Waits for the device."""
        return ScaleState(float(self.scale), *(int(count) for count in self[1:]))


@dataclass(frozen=True, kw_only=True)
class ScalerConfig:
    """The numbers of the rule; ``GradScaler`` explains each.

    Factors and bounds are rounded to float32, the scale's own precision. A product of two float32
    numbers then rounds in the same way on the host, in a fused kernel and under a tracer.
    """

    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    backoff_interval: int = 1
    min_scale: float = 2.0**-24
    max_scale: float = 2.0**24
    dynamic: bool = True
    growth_delay: int = 0
    backoff_count: BackoffCount = "consecutive"
    at_max_scale: AtMaxScale = "clamp"
    at_min_scale: AtMinScale = "stay"
    warn_after_skips: int | None = 25
    max_consecutive_skips: int | None = 1000

    def __post_init__(self) -> None:
        for name in ("growth_factor", "backoff_factor", "min_scale", "max_scale"):
            object.__setattr__(self, name, checked_float(name, getattr(self, name)))
        for name in ("growth_interval", "backoff_interval"):
            _check_count(name, getattr(self, name), least=1)
        _check_count("growth_delay", self.growth_delay, least=0)
        for name in ("warn_after_skips", "max_consecutive_skips"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name), least=1)
        object.__setattr__(self, "dynamic", checked_flag("dynamic", self.dynamic))
        for name, words in (
            ("backoff_count", BACKOFF_COUNTS),
            ("at_max_scale", AT_MAX_SCALE),
            ("at_min_scale", AT_MIN_SCALE),
        ):
            word = getattr(self, name)
            if not isinstance(word, str) or word not in words:
                msg = f"Passed {name}={word!r}; allowed are {listed(words)}.\n"
                raise ArgumentError(msg + f"Hint: GradScaler({name}={words[0]!r})")
        if not self.growth_factor >= 1.0:
            raise _out_of_range("growth_factor", self.growth_factor, "at least 1.0", 2.0)
        if not 0.0 < self.backoff_factor <= 1.0:
            raise _out_of_range("backoff_factor", self.backoff_factor, "in (0.0, 1.0]", 0.5)
        if not self.min_scale >= SMALLEST_SCALE:
            raise _out_of_range("min_scale", self.min_scale, "at least 2.0**-126", 2.0**-24)
        if not self.min_scale <= self.max_scale <= LARGEST_SCALE:
            allowed = f"from min_scale ({self.min_scale!r}) to 2.0**127"
            raise _out_of_range("max_scale", self.max_scale, allowed, 2.0**24)

    def first_state(self, scale: float) -> ScaleState:
        """The state before the first step."""
        return ScaleState(self.check_scale(scale), -self.growth_delay, 0, 0)

    def check_scale(self, scale: float, name: str = "init_scale") -> float:
        """``scale`` as a float between the bounds; ``name`` is the argument's, for the message."""
        scale = checked_float(name, scale)
        if self.min_scale <= scale <= self.max_scale:
            return scale
        bound = "max_scale" if scale > self.max_scale else "min_scale"
        possible = SMALLEST_SCALE <= scale <= LARGEST_SCALE
        hint = f"GradScaler({scale!r}, {bound}={scale!r})" if possible else f"{name}=2.0**16"
        raise ArgumentError(
            f"Passed {name}={scale!r}; allowed is min_scale ({self.min_scale!r}) to "
            f"max_scale ({self.max_scale!r}).\nHint: {hint}"
        )


def next_state(
    state: ScaleState, overflow: Scalar, config: ScalerConfig, where: Where
) -> ScaleState:
    """The state after a step whose gradients are FINITE (0), INF or NAN (not 0).

    It uses only arithmetic, comparison and ``where``, so it runs on Python numbers and, without
    branches, on device tensors and under a tracer. Does not wait for a device.
    """
    counting = counted(state, overflow, config, where)
    if not config.dynamic:
        return counting
    overflowed = overflow > FINITE
    good = where(overflowed, -config.growth_delay, state.good + 1)
    grow = good == config.growth_interval
    finite_bad = where(grow, 0, state.bad) if config.backoff_count == "until_growth" else 0
    bad = where(overflowed, state.bad + 1, finite_bad)
    back_off = where(overflowed, bad >= config.backoff_interval, False)
    # Unless overflows are counted in a row, each further one backs off too.
    bad_after = 0 if config.backoff_count == "consecutive" else config.backoff_interval - 1

    smaller = state.scale * config.backoff_factor
    smaller = where(smaller < config.min_scale, config.min_scale, smaller)
    larger = state.scale * config.growth_factor
    ceiling = config.max_scale if config.at_max_scale == "clamp" else state.scale
    larger = where(larger > config.max_scale, ceiling, larger)
    return counting._replace(
        scale=where(grow, larger, where(back_off, smaller, state.scale)),
        good=where(grow, 0, good),
        bad=where(back_off, bad_after, bad),
    )


def counted(state: ScaleState, overflow: Scalar, config: ScalerConfig, where: Where) -> ScaleState:
    """``state`` with the step counted for the alarms, without a change of the scale."""
    overflowed = overflow > FINITE
    skips = where(overflowed, state.consecutive_skips + 1, 0)
    nans = where(overflow == NAN, state.consecutive_nans + 1, 0)
    warn, most = config.warn_after_skips, config.max_consecutive_skips

    def one_more(count: Scalar, due: Scalar) -> Scalar:
        return count if due is False else where(due, count + 1, count)

    counts = {"consecutive_skips": skips, "consecutive_nans": nans}
    if warn is not None:
        counts["skip_warnings"] = one_more(state.skip_warnings, skips == warn)
        counts["nan_warnings"] = one_more(state.nan_warnings, nans == NANS_BEFORE_WARNING)
    if most is not None:
        counts["stuck_steps"] = one_more(state.stuck_steps, skips >= most)
    if config.at_min_scale == "raise" and config.dynamic:
        lowers = where(overflowed, state.bad + 1 >= config.backoff_interval, False)
        at_floor = where(lowers, state.scale == config.min_scale, False)
        counts["floor_steps"] = one_more(state.floor_steps, at_floor)
    return state._replace(**counts)


def where_on_host(condition: bool, a: Any, b: Any) -> Any:
    """``where`` for values that Python can already branch on."""
    return a if condition else b


class HostStore:
    """The state as Python numbers; the scale is rounded to float32 as on a device."""

    def __init__(self, state: ScaleState) -> None:
        self.write(state)

    def read(self) -> ScaleState:
        return self._state

    def write(self, state: ScaleState) -> None:
        self._state = state._replace(scale=float(np.float32(state.scale)))

    def update(self, overflow: Scalar, config: ScalerConfig) -> ScaleState:
        state = self._state
        if overflow == FINITE and not any(state[2:5]):  # no overflow is remembered
            # What the rule says of almost each step, in a fraction of its time.
            if not config.dynamic:
                return state
            if state.good + 1 != config.growth_interval:
                self._state = ScaleState(state[0], state.good + 1, *state[2:])
                return self._state
        after = next_state(state, overflow, config, where_on_host)
        if after.scale == state.scale:  # rounded already
            self._state = after
        else:
            self.write(after)
        return self._state


def checked_float(name: str, value: object) -> float:
    """``value`` rounded to float32; bool and text are not numbers here."""
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        try:
            with np.errstate(over="ignore"):  # too large becomes inf, which no bound admits
                return float(np.float32(value))
        except OverflowError:  # an int beyond float64
            return math.inf if value > 0 else -math.inf
    example = "2.0**16" if "scale" in name else "2.0"
    msg = f"{name} is a number, not {value!r} of type {type(value).__name__}.\n"
    raise ArgumentTypeError(f"{msg}Hint: {name}={example}")


def as_written(value: Any) -> Any:
    """A float that was rounded to float32 as the shortest one that is rounded to the same: 0.8."""
    rounded = isinstance(value, float) and math.frexp(value)[0] != 0.5
    return float(str(np.float32(value))) if rounded else value


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        if value >= least:
            return
        raise _out_of_range(name, value, f"a whole number from {least}", least)
    msg = f"{name} is a whole number, not {value!r} of type {type(value).__name__}.\n"
    raise ArgumentTypeError(msg + f"Hint: {name}={least}")


def _out_of_range(name: str, value: object, allowed: str, example: object) -> ArgumentError:
    return ArgumentError(
        f"Passed {name}={value!r}; allowed is {allowed}.\nHint: GradScaler({name}={example!r})"
    )
