"""The scaler's state as plain data, and the dictionaries of other scalers.

One form of our own; torch's (and so Accelerate's), Paddle's and Keras' are read by a table of key
names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, TypeAlias

import numpy as np

from ampbridge.adapters.calling_code import warn
from ampbridge.errors import AmpBridgeError, StateError
from ampbridge.scaling.scale_rule import ScalerConfig, ScaleState, checked_float

VERSION = 1

_LARGEST_COUNT = 2**31 - 1  # of the counters on devices

_COUNTERS = ("good_steps", "bad_steps", *ScaleState._fields[3:])
_SETTINGS = tuple(asdict(ScalerConfig()))
_KEYS = ("version", "enabled", "scale", *_COUNTERS, *_SETTINGS)

# Format -> (the key that gives it away, its keys -> ours).
FOREIGN: Mapping[str, tuple[str, Mapping[str, str]]] = {
    # torch.amp.GradScaler.state_dict, torch 2.13; Accelerate saves the same in scaler.pt
    "torch": (
        "_growth_tracker",
        {
            "scale": "scale",
            "growth_factor": "growth_factor",
            "backoff_factor": "backoff_factor",
            "growth_interval": "growth_interval",
            "_growth_tracker": "good_steps",
        },
    ),
    # paddle.amp.GradScaler.state_dict, paddlepaddle 3.3
    "paddle": (
        "incr_every_n_steps",
        {
            "scale": "scale",
            "incr_ratio": "growth_factor",
            "decr_ratio": "backoff_factor",
            "incr_every_n_steps": "growth_interval",
            "decr_every_n_nan_or_inf": "backoff_interval",
            "incr_count": "good_steps",
            "decr_count": "bad_steps",
            "use_dynamic_loss_scaling": "dynamic",
        },
    ),
    # keras.optimizers.LossScaleOptimizer, Keras 3: its variables by name, and its config
    "keras": (
        "dynamic_scale",
        {
            "dynamic_scale": "scale",
            "step_counter": "good_steps",
            "dynamic_growth_steps": "growth_interval",
        },
    ),
}


LoadedState: TypeAlias = tuple[ScaleState, ScalerConfig, bool]
"""The state, the settings, and whether the scaler is enabled."""


def write_state(state: ScaleState, config: ScalerConfig, enabled: bool) -> dict[str, Any]:
    """Our form of the state, from Python numbers."""
    counters = dict(zip(_COUNTERS, state[1:], strict=True))
    return {
        "version": VERSION,
        "enabled": enabled,
        "scale": state.scale,
        **counters,
        **asdict(config),
    }


def read_state(data: Mapping[str, Any], config: ScalerConfig, enabled: bool) -> LoadedState:
    """State and settings out of ``data``; what it does not say stays as ``config`` has it.

    A scale outside of the bounds is moved to the nearest one, with a warning; a counter that has
    passed its interval (torch never grows again then) is set to one before it. Refuses the rest.
    """
    values = _translate(data)
    try:
        config = replace(config, **{k: _setting(k, values[k]) for k in _SETTINGS if k in values})
        counters = {k: _count(k, values.get(k, 0)) for k in _COUNTERS}
        scale = checked_float("scale", _number("scale", values["scale"]))
    except AmpBridgeError as error:
        raise StateError(f"The state holds an impossible value. {error}") from error
    least = {"good_steps": -config.growth_delay}
    impossible = {k: count for k, count in counters.items() if count < least.get(k, 0)}
    if not scale > 0 or impossible:
        raise StateError(
            f"The state holds an impossible value: {impossible or {'scale': scale}}.\n"
            "Hint: start again with GradScaler(); the saved scaler had collapsed."
        )
    good = min(counters["good_steps"], config.growth_interval - 1)
    bad = min(counters["bad_steps"], config.backoff_interval - 1)
    counters |= {"good_steps": good, "bad_steps": bad}
    bounded = min(max(scale, config.min_scale), config.max_scale)
    if bounded != scale:
        warn(
            f"The loaded scale {scale!r} lies outside of this scaler's bounds and becomes {bounded!r}.\n"
            f"Hint: GradScaler(min_scale=..., max_scale={scale!r}) keeps it."
        )
    state = ScaleState(bounded, *counters.values())
    return state, config, bool(values.get("enabled", enabled))


def _translate(data: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        msg = f"A scaler's state is a dict, not {type(data).__name__}.\nHint: scaler.state_dict()"
        raise StateError(msg)
    if "version" in data:
        version = data["version"]
        if type(version) is not int or version != VERSION:
            raise StateError(
                f"Scaler state of version {version!r}; this ampbridge reads version {VERSION}.\n"
                "Hint: pip install --upgrade ampbridge"
            )
        missing = sorted(set(_KEYS) - set(data))
        unknown = sorted(set(map(str, data)) - set(_KEYS))
        if missing or unknown:
            raise StateError(
                f"A scaler state of version {version} has other keys: missing {missing}, unknown {unknown}.\n"
                "Hint: pass GradScaler.state_dict()'s result unchanged."
            )
        return dict(data)
    for signature, names in FOREIGN.values():
        if signature in data:
            values = {ours: data[theirs] for theirs, ours in names.items() if theirs in data}
            if "scale" in values:
                return values
    raise StateError(
        f"No known scaler state: its keys are {sorted(map(str, data))}.\n"
        f"Hint: accepted are GradScaler.state_dict() of ampbridge, {', '.join(FOREIGN)}."
    )


def _setting(name: str, value: Any) -> Any:
    """A setting, whose range ``ScalerConfig`` checks: a number, a word or None."""
    return value if value is None or isinstance(value, str) else _number(name, value)


def _count(name: str, value: Any) -> int:
    number = _number(name, value)
    if number != number or abs(number) > _LARGEST_COUNT or number != int(number):
        raise StateError(f"{name} is a count, not {value!r:.100}.\nHint: {name}=0")
    return int(number)


def _number(name: str, value: Any) -> Any:
    """A Python number out of a number, an array or a tensor of one element (Paddle's scale)."""
    if isinstance(value, (bool, int, float)):
        return value
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise StateError(f"{name} is one number, not {value!r}.\nHint: {name}=1")
    return array.reshape(()).item()
