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
    modules = map(devices.module_of, devices.in_use()[1:])
    # torch.mps tells no peak.
    telling = [module for module in modules if hasattr(module, "reset_peak_memory_stats")]
    used = [(module, index) for module in telling for index in range(module.device_count())]
    for module, index in used:
        module.reset_peak_memory_stats(index)
    before = sum(module.memory_allocated(index) for module, index in used)
    with HeldMemory() as held:
        action()
    peak: int = sum(module.max_memory_allocated(index) for module, index in used) - before
    return peak or held.peak


class HeldMemory(TorchDispatchMode):
    """Counts the memory that kernels of this thread make; ``peak`` is the most that was held at once."""

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
        given = {memory.data_ptr() for memory in _memories((args, kwargs))}
        for memory in _memories(result):
            address, size = memory.data_ptr(), memory.nbytes()
            if size and address not in given and address not in self._alive:
                let_go = partial(self._let_go, address, size)
                self._alive[address] = weakref.ref(memory, let_go)
                self._now += size
                self.peak = max(self.peak, self._now)
        return result

    def _let_go(self, address: int, size: int, _: object) -> None:
        del self._alive[address]
        self._now -= size


def _memories(tree: Any) -> list[torch.UntypedStorage]:
    tensors = [x for x in tree_leaves(tree) if isinstance(x, Tensor)]
    return [x.untyped_storage() for x in tensors if x.layout is torch.strided]
