"""How many bytes of tensors are held at once.

Told by what each kernel returns and when that is let go. Torch's profiler, asked the CPU's allocator,
says the same to a few bytes (tests/torch/test_observing.py), but writes to stderr as it does. On
CUDA the allocator is asked itself.
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


def peak_memory(action: Callable[[], None]) -> int | None:
    """See ``Backend.peak_memory``. Of the GPUs, if they were used; their peak statistics begin anew."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    for gpu in gpus:
        torch.cuda.reset_peak_memory_stats(gpu)
    before = sum(torch.cuda.memory_allocated(gpu) for gpu in gpus)
    with Held() as held:
        action()
    return sum(torch.cuda.max_memory_allocated(gpu) for gpu in gpus) - before or held.peak


class Held(TorchDispatchMode):
    """Counts the memory that kernels of this thread make, forward and backward.

    Attributes:
        peak: the most bytes that were held at once.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
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
