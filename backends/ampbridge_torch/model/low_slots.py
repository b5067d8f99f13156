"""An optimizer's slots for low parameters: float32 in an update, and low between two if ``slots`` says so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, optim

from ampbridge.adapters.low_storage import is_moment, warn_of_rounded_slots
from ampbridge.policies.policy import Policy
from ampbridge_torch.autocast.casting import DTYPES
from ampbridge_torch.model.master_weights import makes_masters, master_of
from ampbridge_torch.model.rounding import Draws, pieces, round_to, widened

STATE_KEY = "master_weight"
"""The slot in which the state dict of an optimizer has a parameter's master."""

Slots = Iterable[tuple[dict[str, Any], Tensor]]
"""Of an optimizer, each with its parameter."""


def slots_dtype(policy: Policy) -> str:
    """The dtype in which an optimizer keeps its slots for low parameters."""
    return policy.slots if makes_masters(policy) else policy.dtype


def is_kept_low(slot: Any, parameter: Tensor) -> bool:
    """Whether ``slot`` is in bfloat16 between two steps of its optimizer."""
    master = master_of(parameter)
    return master is not None and master.low_slots and _is_dense_moment(slot, parameter)


def _is_dense_moment(slot: Any, parameter: Tensor) -> bool:
    """SGD's momentum of sparse gradients is sparse, and stays as it is."""
    return is_moment(slot, parameter) and slot.layout is torch.strided


def is_counter(name: str, slot: Any, parameter: Tensor) -> bool:
    """Whether a slot is a number that torch's optimizers count in, whatever the parameter's dtype.

    All slots of a parameter without dimensions are numbers: these are told by their names.
    """
    if not isinstance(slot, Tensor) or slot.ndim:
        return False
    return parameter.ndim > 0 or name in ("step", "eta", "mu", "mu_product")


def widen_slots(slots: Slots) -> None:
    """Those that are low become float32, for an update."""
    low = _in_dtype(slots, torch.bfloat16)
    wide = widened([own[name] for own, name in low])
    for (own, name), slot in zip(low, wide, strict=True):
        own[name] = slot


@torch.no_grad()
def round_slots(slots: Slots, draws: Draws | None) -> None:
    """Those that are to be low become bfloat16, by chance; without ``draws`` to nearest.

    Piece by piece: all low ones beside all float32 ones would be half as much again.
    """
    places = _in_dtype(slots, torch.float32)
    for piece in pieces([own[name] for own, name in places]):
        wide = [own[name] for own, name in places[piece]]
        low = [torch.empty_like(slot, dtype=torch.bfloat16) for slot in wide]
        round_to(low, wide, draws)
        for (own, name), slot in zip(places[piece], low, strict=True):
            own[name] = slot


def _in_dtype(slots: Slots, dtype: torch.dtype) -> list[tuple[dict[str, Any], str]]:
    """Where those are that are kept low between two steps, and are ``dtype`` now."""
    return [
        (own, name)
        for own, parameter in slots
        for name, slot in own.items()
        if is_kept_low(slot, parameter) and slot.dtype is dtype
    ]


def fit_slots(
    optimizer: optim.Optimizer, parameters: Iterable[Tensor], before: torch.dtype
) -> None:
    """Bring the slots of ``parameters`` to their dtype; counters stay.

    So do slots of another dtype than ``before``, which was the parameters': an optimizer's own choice.
    """
    for parameter in parameters:
        slots = optimizer.state.get(parameter, {})
        for name, slot in slots.items():
            if not is_counter(name, slot, parameter):
                slots[name] = _cast_slot(slot, before, parameter.dtype)


def _cast_slot(slot: Any, before: torch.dtype, dtype: torch.dtype) -> Any:
    if isinstance(slot, list):
        return [_cast_slot(item, before, dtype) for item in slot]
    return slot.to(dtype) if isinstance(slot, Tensor) and slot.dtype is before else slot


def slots_of(optimizer: optim.Optimizer, parameters: Iterable[Tensor]) -> Slots:
    return [(optimizer.state.get(parameter, {}), parameter) for parameter in parameters]


def warn_if_rounded(slots: Slots, policy: Policy) -> None:
    """Warn of the slots of low parameters, or of their masters, if their becoming low changes them."""
    dtype = slots_dtype(policy)
    low = DTYPES[dtype]
    moments = (
        slot
        for own, parameter in slots
        for name, slot in own.items()
        if name != STATE_KEY and _is_dense_moment(slot, parameter) and slot.dtype is torch.float32
    )
    if low is not torch.float32 and any(not torch.equal(s, s.to(low).float()) for s in moments):
        warn_of_rounded_slots(policy, dtype)
