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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from ampbridge.policies.policy import Policy
from ampbridge_torch import _private, devices
from ampbridge_torch.autocast import float32, merging
from ampbridge_torch.autocast.mode import NOTHING, OpListMode, active_mode, listed
from ampbridge_torch.autocast.recomputing import checkpoints_follow
from ampbridge_torch.autocast.rules import Rules, rules_for
from ampbridge_torch.autocast.simulation import CASTABLE
from ampbridge_torch.devices import DeviceType

T = TypeVar("T")

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def cast(x: Tensor, dtype: str) -> Tensor:
    """``x`` in ``dtype``; float64 and what is not floating point as it is. Differentiable."""
    wanted = DTYPES[dtype]
    return x if x.dtype is wanted or x.dtype not in CASTABLE else x.to(wanted)


def region(policy: Policy) -> AbstractContextManager[Any]:
    """Run what is inside as ``policy`` says, on the devices in use.

    They are the CPU, and the accelerator once this process has initialised it. There the mode that the
    CPU's lists need sees CUDA's calls too, at about 2 us each, which a step on known devices saves.
    """
    return region_on(devices.in_use(), policy)


def region_on(types: tuple[DeviceType, ...], policy: Policy) -> AbstractContextManager[Any]:
    """Run what is inside as ``policy`` says, on tensors of devices of ``types``.

    Raises:
        UnsupportedError: for ``execution="simulated"`` on an accelerator alone, or with
            ``lists="native"``.
    """
    rules = rules_for(policy, types)
    if not is_compiling():
        opened = _opened(Region(policy, types, rules))
        return opened if policy.float32 == "default" else float32.setting.around(opened, policy)
    if policy.float32 != "default":
        float32.check_traced(policy.float32)
    outer = active_mode()
    if policy.level == "O0" and outer is None and not _autocast_is_on(types):
        return nullcontext()
    return _traced_region(policy, types, rules, outer)


@contextmanager
def _opened(region: Region) -> Iterator[None]:
    for step in (Region.open, Region.close):  # which Dynamo would compile at a break of its graph
        _private.leave_to_python(step.__code__)
    try:
        region.open()
        yield
        region.close()
    except BaseException as error:
        region.close()
        region.explain(error)
        raise


class Region:
    """``torch.autocast`` and the lists, for one block of code.

    ``close`` puts back what ``open`` has found, as far as it has come; Ctrl-C may cut either short. To
    close a region twice changes nothing. What ``torch.autocast`` sets is set directly, without its checks
    at each step.
    """

    def __init__(self, policy: Policy, types: tuple[DeviceType, ...], rules: Rules) -> None:
        self._policy, self._types, self._rules = policy, types, rules
        self._before: list[tuple[DeviceType, bool, torch.dtype]] = []
        self._nesting: int | None = None  # of torch's regions around
        self._merged: bool | None = None
        self._lists: AbstractContextManager[None] | None = None
        self._checkpoints: AbstractContextManager[None] | None = None
        self._mode: OpListMode | None = None

    def run(self, loss_fn: Callable[..., T], *arguments: Any) -> T:
        """Call ``loss_fn`` in the region."""
        try:
            self.open()
            result = loss_fn(*arguments)
            self.close()
        except BaseException as error:
            self.close()
            self.explain(error)
            raise
        return result

    def open(self) -> None:
        policy, rules = self._policy, self._rules
        outer = active_mode() if _private.function_modes() else None
        if policy.level == "O0" and outer is None and not _autocast_is_on(self._types):
            return  # plain float32 already
        self._merged = merging.here.merges
        for device_type in self._types:
            enabled, dtype = _private.autocast_settings(
                device_type, None if policy.level == "O0" else DTYPES[policy.dtype]
            )
            before = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
            self._before.append((device_type, *before))
            torch.set_autocast_enabled(device_type, enabled)
            torch.set_autocast_dtype(device_type, before[1] if dtype is None else dtype)
        self._nesting = torch.autocast_increment_nesting() - 1
        if policy.level != "O0" and policy.lists != "native":
            if not merging.registered.issuperset(self._types):
                merging.register(self._types)
            merging.here.merges = True
        if rules.table:
            self._checkpoints = checkpoints_follow()
            self._checkpoints.__enter__()
        if outer is not None or rules.functions:
            self._lists = listed(rules, outer)
            self._lists.__enter__()
        elif rules.table:
            self._mode = OpListMode(rules)
            _private.leave_to_python(OpListMode.__torch_function__.__code__)
            _private.push_function_mode(self._mode)

    def close(self) -> None:
        if self._mode is not None:
            self._mode.rules = NOTHING  # an interrupt may leave it on torch's stack
            _private.pop_function_mode(self._mode)
            self._mode = None
        if self._lists is not None:
            lists, self._lists = self._lists, None
            lists.__exit__(None, None, None)
        if self._checkpoints is not None:
            self._checkpoints.__exit__(None, None, None)
        if self._merged is not None:
            merging.here.merges = self._merged
        if self._nesting is not None:
            _leave_regions(self._nesting)
            if self._nesting == 0:
                torch.clear_autocast_cache()  # of weights, which the optimizer is about to change
        for device_type, enabled, dtype in self._before:
            torch.set_autocast_enabled(device_type, enabled)
            torch.set_autocast_dtype(device_type, dtype)

    def explain(self, error: BaseException) -> None:
        """Add a hint to an error of torch about dtypes, whose own messages tell no way to mend it."""
        policy = self._policy
        if not _is_torchs_in_low_precision(error, policy) or not hasattr(error, "add_note"):
            return  # Python has notes since 3.11
        if "without overflow" in str(error):
            hint = (
                "Hint: Policy(..., deny=['masked_fill']), if the model fills what is low here with a number "
                "of float32's range, such as torch.finfo(torch.float32).min."
            )
        elif not _ABOUT_DTYPES.search(str(error)):
            return
        elif self._types == ("cpu",) and policy.lists != "native" and _is_of_a_transform(error):
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


def explain_backward(error: BaseException, policy: Policy) -> None:
    """Add a hint to an error about dtypes in the backward of a ``torch.autograd.Function``."""
    raised = _private.function_that_raised(error)
    is_torchs = _is_torchs_in_low_precision(error, policy) and _ABOUT_DTYPES.search(str(error))
    if raised is None or not is_torchs or not hasattr(error, "add_note"):
        return
    path = f"{raised.__module__}:{raised.__qualname__}.apply"
    error.add_note(f"Hint: Policy(..., deny=[{path!r}]) runs {raised.__name__} in float32.")


def _is_torchs_in_low_precision(error: BaseException, policy: Policy) -> bool:
    return policy.level != "O0" and type(error) in (RuntimeError, NotImplementedError)


def run_outside(function: Callable[..., T], *arguments: Any) -> T:
    """Call ``function`` in no region of low precision, even if the caller is in one."""
    if not _private.lookup("_is_any_autocast_enabled")():
        return function(*arguments)
    return Region(Policy("O0"), devices.in_use(), NOTHING).run(function, *arguments)


def _leave_regions(outer: int) -> None:
    """Leave this thread's regions of ``torch.autocast`` but for ``outer`` ones; twice is once.

    Torch has no function that reads how many there are: the one that adds a region returns it.
    """
    while torch.autocast_increment_nesting() > outer + 1:
        torch.autocast_decrement_nesting()
        torch.autocast_decrement_nesting()
    torch.autocast_decrement_nesting()


@contextmanager
def _traced_region(
    policy: Policy, types: tuple[DeviceType, ...], rules: Rules, outer: OpListMode | None
) -> Iterator[None]:
    """The region within a function that Dynamo traces, made of what Dynamo can follow."""
    if policy.level == "O0":
        casts = [torch.autocast(device_type, enabled=False) for device_type in types]
    else:
        dtype = DTYPES[policy.compute_dtype]
        casts = [torch.autocast(device_type, dtype=dtype) for device_type in types]
    other = casts[1] if len(casts) > 1 else nullcontext()
    with casts[0], other, listed(rules, outer):
        yield


def devices_of(model: nn.Module) -> tuple[DeviceType, ...]:
    """The device types of its parameters; those in use if it has none."""
    found = {parameter.device.type for parameter in model.parameters()}
    in_use = devices.in_use()
    return tuple(device for device in in_use if device in found) or in_use


def _autocast_is_on(device_types: Sequence[DeviceType]) -> bool:
    return any(torch.is_autocast_enabled(device_type) for device_type in device_types)


def _is_of_a_transform(error: BaseException) -> bool:
    """Whether ``torch.func`` is transforming the function that raised, inside of the region or around it."""
    if _private.is_transforming():
        return True
    frames = traceback.walk_tb(error.__traceback__)
    return any(f"{os.sep}_functorch{os.sep}" in frame.f_code.co_filename for frame, _ in frames)


_ABOUT_DTYPES = re.compile("BFloat16|Half|bfloat16|float16|mixed dtype")
