"""Between our scaler and the frameworks' own: what theirs can say of ours, and what it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ampbridge.adapters import registry
from ampbridge.errors import ArgumentError, UnsupportedError, listed
from ampbridge.scaling.presets import PRESETS
from ampbridge.scaling.scale_rule import ScalerConfig

# Framework -> the preset whose rule its scaler follows, and the settings that it can change.
NATIVE: Mapping[str, tuple[str, frozenset[str]]] = {
    "torch": ("torch", frozenset({"growth_factor", "backoff_factor", "growth_interval"})),
    "paddle": (
        "paddle",
        frozenset(
            {"growth_factor", "backoff_factor", "growth_interval", "backoff_interval", "dynamic"}
        ),
    ),
    "tensorflow": ("keras", frozenset({"growth_interval"})),
}

# Ours alone, and without influence on the scale.
ALARMS = frozenset({"warn_after_skips", "max_consecutive_skips"})


def to_native(state: Mapping[str, Any], framework: str, optimizer: Any, drop: Sequence[str]) -> Any:
    """A scaler of ``framework`` in the state that ``GradScaler.state_dict`` describes.

    Refuses settings that it cannot follow, by name.
    """
    if framework not in NATIVE:
        msg = f"{framework!r} has no scaler of its own; allowed are {listed(NATIVE)}.\n"
        raise ArgumentError(msg + "Hint: scaler.to_native('torch')")
    settings = {name: field.default for name, field in ScalerConfig.__dataclass_fields__.items()}
    if isinstance(drop, str) or not set(drop) <= set(settings):
        msg = f"Passed drop={drop!r}; allowed are names of settings, {listed(settings)}.\n"
        raise ArgumentError(msg + "Hint: drop=['min_scale', 'max_scale']")
    preset, expressible = NATIVE[framework]
    always = {**settings, **PRESETS[preset].settings}  # what the framework's scaler does
    own = set(settings) - expressible - ALARMS - set(drop)
    beyond = {name: state[name] for name in settings if name in own and state[name] != always[name]}
    if beyond:
        shown = ", ".join(f"{name}={value!r}" for name, value in beyond.items())
        raise UnsupportedError(
            f"The scaler of {framework} cannot follow {shown}.\n"
            f"Hint: scaler.to_native({framework!r}, drop={sorted({*drop, *beyond})!r}) gives these up, "
            f"or begin with GradScaler.like({preset!r})."
        )
    return registry.backend(framework).native_scaler(state, optimizer)
