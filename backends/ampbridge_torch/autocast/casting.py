"""The region: ``torch.autocast``, and one function mode for the ops whose rule differs from it.

Only ops that the policy wants otherwise than ``torch.autocast`` are intercepted (``rules.py``): none
for the default lists on CUDA and for ``lists="native"``, and then there is no mode at all; all that
are listed on an accelerator whose lists torch does not tell. Where low precision is simulated
(``simulation.py``), the mode sees to every op that would run low.

As with ``torch.autocast``, in-place calls, calls with ``out=`` or an explicit dtype, and float64 are
left alone.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from ampbridge.adapters.interrupts import LAST_OF_SEVERAL
from ampbridge.policies.policy import Policy
from ampbridge_torch import _private, devices
from ampbridge_torch.autocast import merging
from ampbridge_torch.autocast.mode import NOTHING, OpListMode, active_mode, listed
from ampbridge_torch.autocast.recomputing import checkpoints_follow
from ampbridge_torch.autocast.rules import Rules, rules_for
from ampbridge_torch.autocast.simulation import CASTABLE
from ampbridge_torch.devices import DeviceType

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}


def cast(x: Tensor, dtype: str) -> Tensor:
    """``x`` in ``dtype``; float64 and what is not floating point as it is. Differentiable."""
    wanted = DTYPES[dtype]
    return x if x.dtype is wanted or x.dtype not in CASTABLE else x.to(wanted)


def region(policy: Policy) -> AbstractContextManager[Any]:
    """Run what is inside as ``policy`` says, on the devices in use.

    They are the CPU, and the accelerator once this process has initialised it. There the mode that
    the CPU's lists need sees CUDA's calls too, at about 2 us each; ``train_step`` and
    ``value_and_grad`` know the model's devices and save that.

    Raises: as ``region_on``.
    """
    return region_on(devices.in_use(), policy)


def region_on(types: tuple[DeviceType, ...], policy: Policy) -> AbstractContextManager[Any]:
    """Run what is inside as ``policy`` says, on tensors of devices of ``types``.

    Raises:
        UnsupportedError: for ``execution="simulated"`` on an accelerator alone, or with
            ``lists="native"``.
    """
    rules = rules_for(policy, types)
    outer = active_mode()
    if policy.level == "O0" and outer is None and not _autocast_enabled(types):
        return nullcontext()
    if is_compiling():
        return _traced_region(policy, types, rules, outer)
    return _region(policy, types, rules, outer)


@contextmanager
def _region(
    policy: Policy, types: tuple[DeviceType, ...], rules: Rules, outer: OpListMode | None
) -> Iterator[None]:
    """``torch.autocast`` with the lists around it; errors about dtypes come with a hint.

    One frame for all of it: each microsecond counts in a loop.
    """
    lists: AbstractContextManager[Any] = LAST_OF_SEVERAL
    if outer is not None or rules.functions:
        lists = listed(rules, outer)
    elif rules.table:
        lists = OpListMode(rules)
        _private.leave_to_python(OpListMode.__torch_function__.__code__)
    outside = merging.here.merges
    if policy.level != "O0" and policy.lists != "native":
        merging.register(types)
        merging.here.merges = True
    try:
        with (
            _autocast(policy, types[0]),
            _autocast(policy, types[1]) if len(types) > 1 else LAST_OF_SEVERAL,
            checkpoints_follow() if rules.table else LAST_OF_SEVERAL,
            lists,
            LAST_OF_SEVERAL,
        ):
            yield
        merging.here.merges = outside
    except BaseException as error:
        # No ``finally``: an interrupt of its first line would leave it undone.
        merging.here.merges = outside
        if isinstance(lists, OpListMode):
            lists.rules = NOTHING  # one that an interrupt has left on torch's stack casts nothing
        if policy.level != "O0":
            _explain(error, policy, types)
        raise


@contextmanager
def _traced_region(
    policy: Policy, types: tuple[DeviceType, ...], rules: Rules, outer: OpListMode | None
) -> Iterator[None]:
    """The region within a function that Dynamo traces, of what it can follow."""
    other = _autocast(policy, types[1]) if len(types) > 1 else nullcontext()
    with _autocast(policy, types[0]), other, listed(rules, outer):
        yield


def devices_of(model: nn.Module) -> tuple[DeviceType, ...]:
    """The device types of its parameters; those in use if it has none."""
    found = {parameter.device.type for parameter in model.parameters()}
    in_use = devices.in_use()
    return tuple(device for device in in_use if device in found) or in_use


def _autocast_enabled(device_types: Sequence[DeviceType]) -> bool:
    return any(torch.is_autocast_enabled(device_type) for device_type in device_types)


def _autocast(policy: Policy, device_type: DeviceType) -> torch.autocast:
    if policy.level == "O0":
        return torch.autocast(device_type, enabled=False)
    # Dynamo knows torch's own class alone.
    kind = torch.autocast if is_compiling() else _Autocast
    return kind(device_type, dtype=DTYPES[policy.compute_dtype])


class _Autocast(torch.autocast):
    """``torch.autocast``, by its class one of ampbridge's.

    It has no method of its own. An interrupt in Python code that runs ahead of torch's ``__exit__`` would
    leave autocast on.
    """


def is_our_region(region: torch.autocast) -> bool:
    """Whether ``region`` was opened by ampbridge."""
    return isinstance(region, _Autocast)


def _explain(error: BaseException, policy: Policy, types: tuple[DeviceType, ...]) -> None:
    """Add a hint to an error of torch about dtypes, which no message of its own tells how to mend."""
    if type(error) not in (RuntimeError, NotImplementedError) or not hasattr(error, "add_note"):
        return  # not torch's own, or of a Python before 3.11
    if "without overflow" in str(error):
        hint = (
            "Hint: Policy(..., deny=['masked_fill']), if the model fills what is low here with a number "
            "of float32's range, such as torch.finfo(torch.float32).min."
        )
    elif not _ABOUT_DTYPES.search(str(error)):
        return
    elif types == ("cpu",) and policy.lists != "native" and _is_of_a_transform(error):
        hint = (
            f"Hint: {policy.replace(execution='simulated')!r} casts each op inside of torch.func's "
            "transforms; torch's own autocast does not reach some of them there."
        )
    else:
        hint = (
            "Hint: Policy(..., deny=['torch:OP']) runs the op that raised in float32, and keep=['LAYER'] "
            "the layer that called it; allow=['module:Class.apply'] casts what a torch.autograd.Function "
            "is handed."
        )
    if hint not in getattr(error, "__notes__", ()):
        error.add_note(hint)


def _is_of_a_transform(error: BaseException) -> bool:
    """Whether ``torch.func`` is transforming the function that raised, inside of the region or around it."""
    if _private.is_transforming():
        return True
    frames = traceback.walk_tb(error.__traceback__)
    return any(f"{os.sep}_functorch{os.sep}" in frame.f_code.co_filename for frame, _ in frames)


_ABOUT_DTYPES = re.compile("BFloat16|Half|bfloat16|float16|mixed dtype")
