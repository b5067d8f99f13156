"""How many bytes of tensors are held at once.

Told by what each kernel returns and when that is let go. Torch's profiler, asked the CPU's allocator,
says the same to a few bytes (tests/torch/test_observing.py), but writes to stderr as it does. An
accelerator's allocator is asked itself, where its module of torch tells.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampbridge_torch import devices


def peak_memory(action: Callable[[], None]) -> int | None:
    """See ``Backend.peak_memory``. Of the accelerators, if they were used; their peaks begin anew."""
    module = _telling_module()
    used = () if module is None else range(module.device_count())
    for index in used:
        module.reset_peak_memory_stats(index)
    before = sum(module.memory_allocated(index) for index in used)
    with Held() as held:
        action()
    peak: int = sum(module.max_memory_allocated(index) for index in used) - before
    return peak or held.peak


def _telling_module() -> Any:
    """The module of the accelerator that is in use, if it tells of memory. (``torch.mps`` has no peak.)"""
    for device_type in devices.in_use()[1:]:
        module = devices.module_of(device_type)
        if hasattr(module, "reset_peak_memory_stats"):
            return module
    return None


class Held(TorchDispatchMode):
    """Counts the memory that kernels of this thread make, forward and backward.

    Attributes:
        peak: the most bytes that were held at once.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no annotations
        self.peak = 0
        self._now = 0
        self._alive: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        handed = {x.data_ptr() for x in map(_memory, tree_leaves((args, kwargs))) if x is not None}
        for memory in map(_memory, tree_leaves(result)):
            if memory is not None and memory.data_ptr() not in handed:
                self._count(memory)
        return result

    def _count(self, memory: torch.UntypedStorage) -> None:
        address, size = memory.data_ptr(), memory.nbytes()
        if size and address not in self._alive:
            self._alive[address] = weakref.ref(memory, partial(self._let_go, address, size))
            self._now += size
            self.peak = max(self.peak, self._now)

    def _let_go(self, address: int, size: int, _: object) -> None:
        del self._alive[address]
        self._now -= size


def _memory(value: object) -> torch.UntypedStorage | None:
    if isinstance(value, Tensor) and value.layout is torch.strided:
        return value.untyped_storage()
    return None
