"""A policy as a ``torch.autocast`` region, and back."""

from __future__ import annotations

from typing import Any

import torch

from ampbridge.adapters.calling_code import warn
from ampbridge.errors import ArgumentTypeError, UnsupportedError
from ampbridge.policies.policy import LOW_DTYPES, Policy
from ampbridge_torch import devices
from ampbridge_torch.autocast.casting import DTYPES
from ampbridge_torch.autocast.rules import has_lists_of_cuda


def native_policy(policy: Policy) -> torch.autocast:
    """See ``Backend.native_policy``: a region that has not been entered."""
    device = devices.available() or "cpu"
    if policy.level == "O0":
        return torch.autocast(device, enabled=False)
    if policy.lists != "native" and not has_lists_of_cuda(device):
        on = "CPUs" if device == "cpu" else device
        warn(
            f"torch.autocast has lists of its own for {on}; those of {policy!r} are CUDA's, and there "
            f"is no CUDA here.\nHint: amp.autocast(policy) follows them on {on} too."
        )
    return torch.autocast(device, dtype=DTYPES[policy.compute_dtype])


def policy_of_native(native: Any) -> Policy:
    """See ``Backend.policy_of_native``. The lists are CUDA's, or for other devices whatever they have."""
    if not isinstance(native, torch.autocast):
        msg = f"{type(native).__name__} is no torch.autocast.\n"
        raise ArgumentTypeError(msg + "Hint: Policy.from_native(torch.autocast('cuda'))")
    if not native._enabled:
        return Policy("O0")
    dtype = str(native.fast_dtype).removeprefix("torch.")
    if dtype not in LOW_DTYPES:
        msg = f"A policy has no O1 in {native.fast_dtype}.\nHint: torch.autocast('cuda', dtype=torch.float16)"
        raise UnsupportedError(msg)
    lists = "torch" if has_lists_of_cuda(native.device) else "native"
    return Policy("O1", dtype, lists=lists)
