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
        stack.callback(torch.set_rng_state, torch.get_rng_state())
        for module in map(devices.module_of, devices.in_use()[1:]):
            if hasattr(module, "get_rng_state_all"):
                stack.callback(module.set_rng_state_all, module.get_rng_state_all())
            else:  # torch.mps, of one device
                stack.callback(module.set_rng_state, module.get_rng_state())
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
        stack.callback(_put_back, held, _local(held).to("cpu", copy=True))


@torch.no_grad()
def _put_back(tensor: Tensor, values: Tensor) -> None:
    """Only what has changed is written: autograd counts writes, and refuses earlier graphs then."""
    local = _local(tensor)
    if local.layout is torch.strided and not local.is_quantized:
        both = (local.to("cpu"), values)
        if torch.equal(*(x.contiguous().reshape(-1).view(torch.uint8) for x in both)):
            return
    local.copy_(values)


def _local(tensor: Tensor) -> Tensor:
    """The values; of a sharded tensor those of this rank."""
    values = tensor.detach()
    return values.to_local() if _private.is_sharded(values) else values
