"""The dynamic loss-scale rule. It is written once, here.

    finite:      good += 1; bad = 0
                 if good == growth_interval:   scale = min(scale * growth_factor, max_scale);  good = 0
    not finite:  bad += 1; good = 0
                 if bad == backoff_interval:   scale = max(scale * backoff_factor, min_scale); bad = 0

This is torch's rule (``_amp_update_scale_``) with Paddle's ``decr_every_n_nan_or_inf`` (consecutive)
and with a floor and a ceiling, which torch, Paddle and Keras lack: there a scale can reach 0 or inf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ampbridge.backend import Scalar
from ampbridge.errors import ArgumentError, ArgumentTypeError

# Below 2**-126 the reciprocal of a float32 scale overflows, and finite gradients become NaN unseen
# (pytorch#99640); above 2**127 the scale itself does.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, 2.0**127

Where = Callable[[Any, Any, Any], Any]
"""``where(condition, a, b)``: an if-expression on native scalars."""


class ScaleState(NamedTuple):
    """What the scaler remembers from step to step, as native scalars.

    ``scale`` is float32 wherever it lives, so that every backend rounds it alike.
    """

    scale: Scalar
    good: Scalar
    bad: Scalar
    consecutive_skips: Scalar


@dataclass(frozen=True)
class ScalerConfig:
    """The numbers of the rule; what each means is said in ``GradScaler``.

    Factors and bounds are rounded to float32, the scale's own precision: a product of two float32
    numbers then rounds alike on the host, in a fused kernel and under a tracer.
    """

    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    backoff_interval: int = 1
    min_scale: float = 2.0**-24
    max_scale: float = 2.0**24
    dynamic: bool = True

    def __post_init__(self) -> None:
        for name in ("growth_factor", "backoff_factor", "min_scale", "max_scale"):
            object.__setattr__(self, name, checked_float(name, getattr(self, name)))
        for name in ("growth_interval", "backoff_interval"):
            _check_count(name, getattr(self, name))
        if not self.growth_factor >= 1.0:
            raise _out_of_range("growth_factor", self.growth_factor, "at least 1.0", 2.0)
        if not 0.0 < self.backoff_factor <= 1.0:
            raise _out_of_range("backoff_factor", self.backoff_factor, "in (0.0, 1.0]", 0.5)
        if not self.min_scale >= SMALLEST_SCALE:
            raise _out_of_range("min_scale", self.min_scale, "at least 2.0**-126", 2.0**-24)
        if not self.min_scale <= self.max_scale <= LARGEST_SCALE:
            allowed = f"from min_scale ({self.min_scale!r}) to 2.0**127"
            raise _out_of_range("max_scale", self.max_scale, allowed, 2.0**24)

    def check_scale(self, scale: float) -> float:
        """``scale`` as a float, if it lies between the bounds.

        Raises:
            ArgumentError: if it does not.
        """
        scale = checked_float("init_scale", scale)
        if not self.min_scale <= scale <= self.max_scale:
            msg = (
                f"Passed init_scale={scale!r}; allowed is min_scale ({self.min_scale!r}) to "
                f"max_scale ({self.max_scale!r}).\nHint: GradScaler({scale!r}, max_scale={scale!r})"
            )
            raise ArgumentError(msg)
        return scale


def next_state(state: ScaleState, found: Scalar, config: ScalerConfig, where: Where) -> ScaleState:
    """The state after a step whose gradients were found FINITE (0), INF or NAN (not 0).

    Only arithmetic, comparison and ``where``: it runs on Python numbers and, branch-free, on
    device tensors and under a tracer. Does not wait for a device.
    """
    overflow = found > 0
    skips = where(overflow, state.consecutive_skips + 1, 0)
    if not config.dynamic:
        return state._replace(consecutive_skips=skips)
    good = where(overflow, 0, state.good + 1)
    bad = where(overflow, state.bad + 1, 0)
    grow = good == config.growth_interval
    back_off = bad == config.backoff_interval
    larger = state.scale * config.growth_factor
    larger = where(larger > config.max_scale, config.max_scale, larger)
    smaller = state.scale * config.backoff_factor
    smaller = where(smaller < config.min_scale, config.min_scale, smaller)
    scale = where(back_off, smaller, where(grow, larger, state.scale))
    return ScaleState(scale, where(grow, 0, good), where(back_off, 0, bad), skips)


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

    def update(self, found: Scalar, config: ScalerConfig) -> None:
        self.write(next_state(self._state, found, config, where_on_host))


def checked_float(name: str, value: object) -> float:
    """``value`` rounded to float32; bool and text are not numbers here."""
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        with np.errstate(over="ignore"):  # too large becomes inf, which no bound admits
            return float(np.float32(value))
    msg = f"{name} is a number, not {value!r} of type {type(value).__name__}.\n"
    raise ArgumentTypeError(
        msg + f"Hint: {name}=2.0**16" if "scale" in name else msg + f"Hint: {name}=2.0"
    )


def _check_count(name: str, value: object) -> None:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        if value >= 1:
            return
        raise _out_of_range(name, value, "a whole number from 1", 1)
    msg = f"{name} is a whole number, not {value!r} of type {type(value).__name__}.\n"
    raise ArgumentTypeError(msg + f"Hint: {name}=1")


def _out_of_range(name: str, value: object, allowed: str, example: object) -> ArgumentError:
    return ArgumentError(
        f"Passed {name}={value!r}; allowed is {allowed}.\nHint: GradScaler({name}={example!r})"
    )
