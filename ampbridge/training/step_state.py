"""The state of a training step as plain data, and whether such data fits a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ampbridge.adapters.backend import Backend
from ampbridge.adapters.low_storage import warn_of_rounded_slots, warn_of_rounded_weights
from ampbridge.errors import AmpBridgeError, StateError
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import Schedule, from_dict
from ampbridge.scaling.scaler import GradScaler
from ampbridge.scaling.scaler_state import LoadedState
from ampbridge.training.decorate import slots_dtype

STATE_VERSION = 1

_KEYS = {"version", "step", "policy", "schedule", "scaler", "unscaled"}


class CheckedState(NamedTuple):
    """A ``state_dict`` that fits the step it is loaded into."""

    step: int
    schedule: dict[str, Any]
    scaler: LoadedState | None
    unscaled: LoadedState
    slots_told: bool
    """Whether it has been said that this step rounds the slots that were saved."""


def checked_state(
    state: Mapping[str, Any],
    backend: Backend,
    plan: Policy | Schedule,
    scaler: GradScaler | None,
    unscaled: GradScaler,
) -> CheckedState:
    """All of ``state``; refuses one that does not fit a step with these."""
    version = state.get("version") if isinstance(state, Mapping) else None
    if type(version) is not int or version != STATE_VERSION or set(state) != _KEYS:
        found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateError(
            f"Not a train_step state of version {STATE_VERSION}: {found}.\n"
            f"Hint: pass step.state_dict()'s result, keys {sorted(_KEYS)}."
        )
    saved = state["policy"]
    try:
        saved_plan = from_dict(saved)
    except (AmpBridgeError, TypeError, KeyError, ValueError) as error:
        raise StateError(
            f"The state's policy cannot be read. {_impossible('policy', saved)}"
        ) from error
    slots_told = False
    if (
        isinstance(saved_plan, Policy)
        and isinstance(plan, Policy)
        and _but_storage(saved_plan) == _but_storage(plan)
    ):
        slots_told = _warn_of_what_is_lost(backend, saved_plan, plan)
    elif saved_plan != plan:
        raise StateError(
            f"The state was saved under {saved_plan!r}, this step runs {plan!r}.\n"
            f"Hint: amp.train_step(..., policy={saved_plan!r}); or amp.load_weights(path, model), which "
            "takes the weights alone."
        )
    if (state["scaler"] is None) != (scaler is None):
        has, wants = ("no", "a") if state["scaler"] is None else ("a", "no")
        msg = f"The state has {has} scaler, this step has {wants} scaler.\n"
        raise StateError(msg + "Hint: make the step with the scaler= it was saved with.")
    schedule_state = state["schedule"]
    if isinstance(plan, Schedule):
        plan.check_state(schedule_state)
    elif not isinstance(schedule_state, dict) or schedule_state:
        raise StateError(_impossible("schedule", schedule_state))
    step = state["step"]
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**31:
        raise StateError(_impossible("step", step))
    return CheckedState(
        step,
        dict(schedule_state),
        None if scaler is None else scaler.checked_state(state["scaler"]),
        unscaled.checked_state(state["unscaled"]),
        slots_told,
    )


def _but_storage(policy: Policy) -> dict[str, Any]:
    """The fields that do not say how weights and slots are kept between two steps."""
    return {k: v for k, v in policy.to_dict().items() if k not in ("masters", "slots")}


def _warn_of_what_is_lost(backend: Backend, saved: Policy, plan: Policy) -> bool:
    """Warn of what ``plan`` rounds, and ``saved`` did not; whether that includes slots."""
    hint = f"amp.train_step(..., policy={saved!r})"
    if saved.variable_dtype == "float32" != plan.variable_dtype:
        warn_of_rounded_weights(plan, f"saved in float32, under {saved!r}", hint)
    dtype = slots_dtype(backend, plan)
    are_rounded = slots_dtype(backend, saved) == "float32" != dtype
    if are_rounded:
        warn_of_rounded_slots(plan, dtype, saved)
    return are_rounded


def _impossible(name: str, value: Any) -> str:
    return (
        f"The state holds an impossible value: {name}={value!r:.200}.\n"
        "Hint: pass step.state_dict()'s result unchanged."
    )
