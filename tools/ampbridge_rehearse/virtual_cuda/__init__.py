"""A CUDA device whose memory and arithmetic are the CPU's; README.md beside this file says what it is.

from ampbridge_rehearse import virtual_cuda
virtual_cuda.install()      # before torch is imported
import torch
torch.ones(3, device="cuda")
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from ampbridge.errors import UnsupportedError

__all__ = [
    "Call",
    "Wait",
    "calls",
    "forget",
    "install",
    "is_installed",
    "kernel_seconds",
    "note_calls",
    "on_call",
    "on_wait",
    "peak_memory",
    "waits",
]


class Call(NamedTuple):
    """Kernels that ran: their op, the dtypes of its tensors, and how many there were."""

    op: str
    dtypes: tuple[str, ...]
    count: int  # type: ignore[assignment]  # stands for tuple.count


class Wait(NamedTuple):
    """The host waited for the device.

    Attributes:
        kind: ``"read"`` of a value or a shape, ``"write"`` of the host's memory to the device
            (without ``non_blocking``), or ``"synchronize"``.
        op: the op that waited, as ``"aten::copy_"``.
        count: how many times.
    """

    kind: str
    op: str
    count: int  # type: ignore[assignment]  # stands for tuple.count


_ToldWait = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)
_ToldCall = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p)
_kept: dict[str, Any] = {}  # the library, and the functions that it calls


def install(device_type: Literal["cuda", "virtual"] = "cuda") -> None:
    """Make the device; nothing, if it is there. Compiles it, once on a machine: half a minute.

    Args:
        device_type: what torch takes it for: CUDA, or a device of an extension (PrivateUse1, as NPUs
            are) with autocast lists of its own. A process has one of them.

    Raises:
        UnsupportedError: if torch is imported already or built for CUDA, or there is no compiler, or
            the device is there as the other type.
    """
    if is_installed():
        if _kept["device type"] != device_type:
            msg = (
                f"The virtual device is there as {_kept['device type']!r}, not as {device_type!r}.\n"
                "Hint: a process for each"
            )
            raise UnsupportedError(msg)
        return
    if "torch" in sys.modules:
        msg = (
            "torch is imported already, and has looked for CUDA.\n"
            "Hint: ampbridge_rehearse.virtual_cuda.install() before the first import of torch"
        )
        raise UnsupportedError(msg)
    from ampbridge_rehearse.virtual_cuda import building

    library = building.built()
    ctypes.CDLL(str(building.torch_folder() / "lib" / "libtorch_cpu.so"), ctypes.RTLD_GLOBAL)
    _kept["library"] = ctypes.CDLL(str(library))
    _kept["library"].install(ctypes.c_bool(device_type == "cuda"))
    _kept["device type"] = device_type
    if device_type == "cuda":
        from ampbridge_rehearse.virtual_cuda import answers

        answers.give()
    else:
        from ampbridge_rehearse.virtual_cuda import extension

        extension.give()
    from ampbridge_rehearse.virtual_cuda import layouts

    layouts.refuse("CUDA" if device_type == "cuda" else "PrivateUse1")


def is_installed() -> bool:
    """Whether this process has the device."""
    return bool(_kept)


def note_calls(on: bool = True) -> None:
    """Note kernels from now on, or no more. Waits are noted always."""
    _ops().note_calls(on)


def calls() -> list[Call]:
    """The kernels that ran since ``forget``, while they were noted."""
    return [Call(op, tuple(dtypes.split()), count) for op, dtypes, count in _ops().calls()]


def waits() -> list[Wait]:
    """Where the host waited since ``forget``."""
    return [Wait(*wait) for wait in _ops().waits()]


def kernel_seconds() -> float:
    """The time that kernels took since ``forget``. What a step takes besides is the host's."""
    return float(_ops().nanoseconds()) / 1e9


def forget() -> None:
    """Forget calls, waits and the time of kernels."""
    _ops().forget()


def on_wait(tell: Callable[[str, str], None] | None) -> None:
    """Have ``tell(kind, op)`` called at each wait, in the thread that waits; None: nobody."""

    def told(kind: bytes, op: bytes) -> None:
        if tell is not None:
            tell(kind.decode(), op.decode())

    _have_called("on_wait", None if tell is None else _ToldWait(told))


def on_call(tell: Callable[[str, str, str], None] | None) -> None:
    """Have ``tell(op, dtypes, asked)`` called ahead of each kernel, in its thread; None: nobody.

    ``asked`` is the dtype that a kernel of 16-bit inputs is told to compute in, "" if it is theirs.
    """

    def told(op: bytes, dtypes: bytes, asked: bytes) -> None:
        if tell is not None:
            tell(op.decode(), dtypes.decode(), asked.decode())

    _have_called("on_call", None if tell is None else _ToldCall(told))


def _have_called(name: str, function: Any) -> None:
    address = 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value
    getattr(_ops(), name)(address)
    _kept[name] = function


def peak_memory() -> int:
    """The most bytes that were allocated at a time, whatever ``reset_peak_memory_stats`` forgot."""
    from ampbridge_rehearse.virtual_cuda import answers

    return answers.peak_memory()


def _ops() -> Any:
    import torch

    return torch.ops.virtual_cuda
