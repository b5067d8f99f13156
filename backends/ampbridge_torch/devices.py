"""The types of device that a region covers: the CPU's, and the accelerator's.

An accelerator is whatever torch has an autocast for: CUDA, Intel's ``xpu``, Apple's ``mps``, ``hpu``,
NPUs and others that an extension adds (PrivateUse1). Torch uses one type of them in a process, and so
do the rules of a region.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ampbridge.errors import UnsupportedError

DeviceType: TypeAlias = str
"""As ``torch.device(...).type`` has it."""


def available() -> DeviceType | None:
    """The type of the accelerator that this process can use; CUDA, if there are others besides."""
    if torch.cuda.is_available():
        return "cuda"
    other = _other()
    return other if other is not None and module_of(other).is_available() else None


def in_use() -> tuple[DeviceType, ...]:
    """The CPU, and the accelerator once this process has initialised it."""
    return ("cpu", "cuda") if torch.cuda.is_initialized() else _without_cuda()


@torch.compiler.assume_constant_result
def _without_cuda() -> tuple[DeviceType, ...]:
    other = _other()
    if other is None:
        return ("cpu",)
    module = module_of(other)
    # torch.mps has no such question: it is there from the start.
    is_initialized = getattr(module, "is_initialized", module.is_available)
    return ("cpu", other) if is_initialized() else ("cpu",)


def _other() -> DeviceType | None:
    """The accelerator that torch was built for, or that an extension added, if that is not CUDA."""
    found = torch.accelerator.current_accelerator()
    if found is None or found.type in ("cpu", "cuda"):  # torch 2.6 says "cpu" for none
        return None
    return found.type if torch.amp.is_autocast_available(found.type) else None


def types_of(tensors: Iterable[Tensor]) -> tuple[DeviceType, ...]:
    """The device types of a model's tensors, the CPU first; at most one more, that has an autocast."""
    found = {tensor.device.type for tensor in tensors}
    others = tuple(found - {"cpu"})
    if len(others) > 1 or not all(map(torch.amp.is_autocast_available, others)):
        raise UnsupportedError(
            f"The model is on {sorted(found)}; the torch backend runs on 'cpu' and on one accelerator "
            "that torch has an autocast for ('cuda', 'xpu', 'mps', ...).\n"
            "Hint: model.to('cpu')"
        )
    return (("cpu",) if "cpu" in found else ()) + others


def module_of(device_type: DeviceType) -> Any:
    """``torch.cuda`` of CUDA, ``torch.mps`` of MPS."""
    return torch.get_device_module(device_type)
