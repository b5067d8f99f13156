"""``torch.amp.GradScaler``, from ours and to ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import optim
from torch.amp import GradScaler as NativeScaler

from ampbridge.errors import ArgumentTypeError
from ampbridge.scaling.scaler import GradScaler
from ampbridge_torch import devices
from ampbridge_torch.step.gradients import parameters


def native_scaler(state: Mapping[str, Any], optimizer: optim.Optimizer | None) -> NativeScaler:
    """See ``Backend.native_scaler``. On the optimizer's device; else on the accelerator, if there is one.

    By ``load_state_dict``: a scaler that is made refuses factors of 1, which it follows.
    """
    owned = [] if optimizer is None else parameters(optimizer)
    device = owned[0].device.type if owned else devices.available() or "cpu"
    scaler = NativeScaler(device, enabled=state["enabled"])
    same = ("scale", "growth_factor", "backoff_factor", "growth_interval")
    growth_tracker = {"_growth_tracker": state["good_steps"]}
    scaler.load_state_dict({key: state[key] for key in same} | growth_tracker)
    return scaler


def native_scaler_state(scaler: Any) -> Mapping[str, Any]:
    """See ``Backend.native_scaler_state``. Waits for the device."""
    if not isinstance(scaler, NativeScaler):
        msg = f"{type(scaler).__name__} is no torch.amp.GradScaler.\n"
        raise ArgumentTypeError(msg + "Hint: GradScaler.from_native(torch.amp.GradScaler('cpu'))")
    if not scaler.is_enabled():  # one that is off has no state
        return GradScaler.like("torch", enabled=False).state_dict()
    return scaler.state_dict()
