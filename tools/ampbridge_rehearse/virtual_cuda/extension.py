"""``torch.virtual``: the module that an extension of torch's registers for its device.

What torch's autocast, checkpoints, random numbers and ``torch.save`` ask of it, by the names that
torch's documentation of PrivateUse1 gives them.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch.utils import backend_registration

DEVICE_TYPE = "virtual"
NAME = "ampbridge's virtual accelerator"


def give() -> None:
    """Let torch find the device under its name, with ``.virtual()`` and ``is_virtual`` of tensors."""
    backend_registration.rename_privateuse1_backend(DEVICE_TYPE)
    module = ModuleType(f"torch.{DEVICE_TYPE}", __doc__)
    vars(module).update(_ANSWERS)
    torch._register_device_module(DEVICE_TYPE, module)
    backend_registration.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_storage=True
    )


def _device() -> Any:
    return torch.ops.virtual_cuda


class _Current:
    """``with torch.virtual.device(0)``: there is one, so nothing changes."""

    def __init__(self, device: Any) -> None:
        _check_is_there(device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        pass


def _check_is_there(device: Any) -> None:
    index = torch.device(device).index if isinstance(device, (str, torch.device)) else device
    if index is not None and index > 0:
        msg = f"{DEVICE_TYPE}: invalid device ordinal {index}"
        raise torch.AcceleratorError(msg)


def _get_rng_state(device: Any = DEVICE_TYPE) -> torch.Tensor:
    state: torch.Tensor = _device().default_generator().get_state()
    return state


def _set_rng_state(state: torch.Tensor, device: Any = DEVICE_TYPE) -> None:
    _device().default_generator().set_state(state)


def _manual_seed(seed: int) -> None:
    _device().default_generator().manual_seed(seed)


def _memory(index: int) -> int:
    return int(_device().memory()[index])


_ANSWERS = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "_initialized": True,  # or checkpoints leave its random numbers alone
    "_is_in_bad_fork": lambda: False,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": _check_is_there,
    "device": _Current,
    "get_device_name": lambda device=None: NAME,
    "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
    "synchronize": lambda device=None: _device().synchronize(),
    "get_rng_state": _get_rng_state,
    "set_rng_state": _set_rng_state,
    "get_rng_state_all": lambda: [_get_rng_state()],
    "set_rng_state_all": lambda states: _set_rng_state(states[0]),
    "manual_seed": _manual_seed,
    "manual_seed_all": _manual_seed,
    "memory_allocated": lambda device=None: _memory(0),
    "max_memory_allocated": lambda device=None: _memory(1),
    "reset_peak_memory_stats": lambda device=None: _device().reset_peak_memory(),
}
