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

# Ours -> the keys of torch's state dict.
_KEYS = {
    "scale": "scale",
    "growth_factor": "growth_factor",
    "backoff_factor": "backoff_factor",
    "growth_interval": "growth_interval",
    "good_steps": "_growth_tracker",
}


def native_scaler(state: Mapping[str, Any], optimizer: optim.Optimizer | None) -> NativeScaler:
    """See ``Backend.native_scaler``. On the optimizer's device; else on the accelerator, if there is one.

    By ``load_state_dict``: a scaler that is made refuses factors of 1, which it follows.
    """
    scaler = NativeScaler(_device(optimizer), enabled=state["enabled"])
    scaler.load_state_dict({theirs: state[ours] for ours, theirs in _KEYS.items()})
    return scaler


def _device(optimizer: optim.Optimizer | None) -> str:
    owned = [] if optimizer is None else parameters(optimizer)
    if owned:
        return owned[0].device.type
    return devices.available() or "cpu"


def native_scaler_state(scaler: Any) -> Mapping[str, Any]:
    """See ``Backend.native_scaler_state``. Waits for the device."""
    if not isinstance(scaler, NativeScaler):
        msg = f"{type(scaler).__name__} is no torch.amp.GradScaler.\n"
        raise ArgumentTypeError(msg + "Hint: GradScaler.from_native(torch.amp.GradScaler('cpu'))")
    if not scaler.is_enabled():  # one that is off has no state
        return GradScaler.like("torch", enabled=False).state_dict()
    return scaler.state_dict()
