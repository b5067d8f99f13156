"""What ``torch.cuda`` asks of torch's C++ part, which a CPU build lacks: answered for the one device.

Private names of torch, checked on 2.13: ``torch._C._cuda_*``, and what ``torch._C._cuda_init`` puts
into ``torch.cuda``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

CAPABILITY = (9, 0)
NAME = "ampbridge's virtual CUDA device"
_MEMORY = 16 * 2**30


def give() -> None:
    """Let ``torch.cuda`` find the device."""
    torch._C._has_cuda = True
    for name, answer in _ANSWERS.items():
        setattr(torch._C, f"_cuda_{name}", answer)
    vars(torch._C).update(_OF_GRAPHS)
    cuda: Any = torch.cuda
    cuda._cudart = SimpleNamespace(cudaMemGetInfo=lambda device: (_MEMORY, _MEMORY))
    cuda._exchange_device = _ANSWERS["exchangeDevice"]
    cuda._maybe_exchange_device = _ANSWERS["maybeExchangeDevice"]
    cuda._get_device_properties = lambda device: PROPERTIES
    cuda.default_generators = (_device().default_generator(),)
    cuda.streams.Stream.__bases__ = (_StreamBase,)
    cuda.streams.Event.__bases__ = (_EventBase,)
    cuda.nvtx._nvtx = SimpleNamespace(**dict.fromkeys(_OF_NVTX, lambda *args: 0))
    torch.backends.cudnn.is_acceptable = lambda tensor: False
    tensor: Any = torch.Tensor
    tensor.record_stream = _record_stream  # torch's asks for a stream of its C++ part
    storage: Any = torch.UntypedStorage
    storage.__new__ = _new_storage


def _device() -> Any:
    return torch.ops.virtual_cuda


PROPERTIES = SimpleNamespace(
    name=NAME,
    major=CAPABILITY[0],
    minor=CAPABILITY[1],
    total_memory=_MEMORY,
    multi_processor_count=1,
    is_integrated=False,
    is_multi_gpu_board=False,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 * 2**20,
    uuid="00000000-0000-0000-0000-000000000000",
    gcnArchName="",
)


def _new_storage(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """``torch.UntypedStorage``, whose C++ part knows the devices that it was built for."""
    if device is None or torch.device(device).type != "cuda":
        new: Any = torch._C.StorageBase.__new__  # its stub takes no arguments
        return new(cls, *args, device=device, **kwargs)
    size = args[0] if args else 0
    return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()


def _record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """Nothing: the only stream is never behind."""


_MEASURES = ("current", "peak", "allocated", "freed")


def _memory_stats(device: int) -> dict[str, Any]:
    """As the caching allocator tells them; what is reserved is what is allocated."""
    numbers = _device().memory()
    in_bytes, blocks = _of_pools(numbers[:4]), _of_pools(numbers[4:])
    nothing = _of_pools([0] * len(_MEASURES))
    return {
        **{f"{what}_bytes": in_bytes for what in ("allocated", "reserved", "active", "requested")},
        **dict.fromkeys(("allocation", "segment", "active"), blocks),
        **dict.fromkeys(("inactive_split", "inactive_split_bytes"), nothing),
        **dict.fromkeys(("oversize_allocations", "oversize_segments"), nothing["all"]),
        "num_alloc_retries": 0,
        "num_ooms": 0,
    }


def _of_pools(numbers: Sequence[int]) -> dict[str, dict[str, int]]:
    """There is one pool, which is called the large one."""
    told = dict(zip(_MEASURES, numbers, strict=True))
    return {"all": told, "large_pool": told, "small_pool": dict.fromkeys(_MEASURES, 0)}


def _check_is_there(device: int) -> int:
    if device > 0:  # negative: the current one
        msg = "CUDA error: invalid device ordinal\n"
        raise torch.AcceleratorError(
            msg + "GPU device may be out of range, do you have enough GPUs?"
        )
    return 0


_PEAK = 1  # where the op ``memory`` tells it
_peaks = [0]  # the largest of those that were forgotten


def peak_memory() -> int:
    """The most bytes that were allocated at a time, whatever was forgotten since."""
    present: int = _device().memory()[_PEAK]
    return max(_peaks[0], present)


def _forget_peak(device: int) -> None:
    _peaks[0] = peak_memory()
    _device().reset_peak_memory()


class _StreamBase:
    """The one stream, which is always idle."""

    stream_id = cuda_stream = device_index = 0
    device_type = 1  # CUDA's

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", 0)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _device().synchronize()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _StreamBase)

    def __hash__(self) -> int:
        return 0


class _EventBase:
    """A moment on the host's clock: the device works while the host calls it."""

    cuda_event = 0

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", 0)
        self._at = 0.0

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: _EventBase) -> float:
        """Milliseconds."""
        return (end._at - self._at) * 1000.0

    def synchronize(self) -> None:
        _device().synchronize()


# A profiler's marks, which nobody reads here.
_OF_NVTX = (
    *("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA"),
    *("deviceRangeStart", "deviceRangeEnd"),
)

# What modules import on a build with CUDA; there are no graphs here.
_OF_GRAPHS = {
    "_cuda_CUDAAllocator_AllocatorState": type("AllocatorState", (), {}),
    "_set_cached_tensors_enabled": lambda on: None,
    "_scatter": lambda tensor, *where: (tensor.to("cuda"),),  # DataParallel's, over one device
}

_ANSWERS = {
    "init": lambda: None,
    "isInBadFork": lambda: False,
    "getDeviceCount": lambda: 1,
    "getDevice": lambda: 0,
    "setDevice": lambda device: _check_is_there(device),
    "exchangeDevice": lambda device: _check_is_there(device),
    "maybeExchangeDevice": lambda device: 0,
    "hasPrimaryContext": lambda device: True,
    "canDeviceAccessPeer": lambda device, peer: False,
    "synchronize": lambda: _device().synchronize(),
    "getCurrentStream": lambda device: (0, 0, 1),
    "getDefaultStream": lambda device: (0, 0, 1),
    "getCurrentRawStream": lambda device: 0,
    "setStream": lambda **stream: None,
    "isCurrentStreamCapturing": lambda: False,
    "getArchFlags": lambda: "sm_90",
    "getCompiledVersion": lambda: 12000,
    "getAllocatorBackend": lambda: "native",
    "emptyCache": lambda *pool: None,
    "ipc_collect": lambda: None,
    "setMemoryFraction": lambda fraction, device: None,
    "memoryStats": _memory_stats,
    "resetPeakMemoryStats": _forget_peak,
    "resetAccumulatedMemoryStats": lambda device: _device().reset_accumulated_memory(),
    "set_sync_debug_mode": lambda mode: _device().set_sync_debug_mode(mode),
    "get_sync_debug_mode": lambda: _device().sync_debug_mode(),
}
