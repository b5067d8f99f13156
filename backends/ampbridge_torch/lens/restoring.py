"""What a pass changes in a model, and where its random numbers come from, put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from ampbridge.adapters.restoring import remember_attributes
from ampbridge_torch import _private, devices
from ampbridge_torch.step import ranks


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """See ``Backend.restored``. Of a sharded model each rank gives back its own shards."""
    ranks.reshard(model)
    with ExitStack() as stack:
        _remember_generators(stack)
        remember_attributes(stack, model.modules(), _remember)
        for parameter in model.parameters():
            stack.callback(setattr, parameter, "grad", parameter.grad)  # O2 makes another
        stack.callback(ranks.reshard, model)
        yield


def _remember(stack: ExitStack, held: object) -> None:
    """A tensor's values, whether it is a parameter, a buffer or neither; a generator's state."""
    if isinstance(held, torch.Generator):
        stack.callback(held.set_state, held.get_state())
    elif isinstance(held, Tensor) and not held.is_meta:
        stack.callback(_put_back, held, _copy(held))


def _remember_generators(stack: ExitStack) -> None:
    stack.callback(torch.set_rng_state, torch.get_rng_state())
    for device_type in devices.in_use()[1:]:
        module = devices.module_of(device_type)
        if hasattr(module, "get_rng_state_all"):
            stack.callback(module.set_rng_state_all, module.get_rng_state_all())
        else:  # torch.mps, of one device
            stack.callback(module.set_rng_state, module.get_rng_state())


@torch.no_grad()
def _put_back(tensor: Tensor, values: Tensor) -> None:
    """Only what has changed is written: autograd counts writes, and refuses earlier graphs then."""
    if not _same_bits(_copy(tensor), values):
        _local(tensor).copy_(values)


def _copy(tensor: Tensor) -> Tensor:
    """The values on the host, of a sharded tensor those of this rank."""
    return _local(tensor).to("cpu", copy=True)


def _local(tensor: Tensor) -> Tensor:
    values = tensor.detach()
    return values.to_local() if _private.is_sharded(values) else values


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.layout is not torch.strided or a.is_quantized:
        return False
    return torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in (a, b)))
