"""Several ranks: FSDP2's shards, an overflow that all agree on, and models that are the same on each.

DistributedDataParallel and FSDP2 reduce gradients in the backward pass, inf and NaN with them: ranks
that hold whole gradients find the same overflow. Of sharded gradients each rank sees a part.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ampbridge.adapters.ranks import act_for_all
from ampbridge.errors import UnsupportedError
from ampbridge_torch import _private

Group = Any

# -- tensors


def reshard(model: nn.Module) -> None:
    """Give parameters that FSDP2 has left whole after a forward pass back to their ranks."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # it takes long to import
    if fsdp is not None:
        for module in model.modules():
            if isinstance(module, fsdp.FSDPModule):
                module.reshard()


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or all shards of it, on its mesh's device. Every rank has to ask."""
    if not _private.is_sharded(tensor):
        return tensor
    sharded: Any = tensor.detach()
    values: Tensor = sharded.to(sharded.device_mesh.device_type).full_tensor()
    return values


def shard_of(values: Tensor, like: Tensor) -> Tensor:
    """``values``, which every rank has, or this rank's part of them if ``like`` is sharded."""
    if not _private.is_sharded(like):
        return values
    from torch.distributed.tensor import distribute_tensor

    owner: Any = like
    values = values.to(owner.device_mesh.device_type)
    return distribute_tensor(values, owner.device_mesh, owner.placements).to(like.device)


def alike(slot: Tensor, parameter: Tensor) -> bool:
    """Whether a slot is sharded as its parameter is, or the same number on each rank."""
    if not slot.ndim or not _private.is_sharded(parameter):
        return not _private.is_sharded(slot)
    placed = attrgetter("shape", "device_mesh", "placements")
    return _private.is_sharded(slot) and bool(placed(slot) == placed(parameter))


def check_placements(name: str, tensor: Tensor) -> None:
    """Refuse shards of shards, as of FSDP2 on top of tensor parallelism: ``whole`` cannot be undone."""
    from torch.distributed.tensor import Replicate, Shard

    placements = getattr(tensor, "placements", ())
    if not all(type(placement) in (Replicate, Shard) for placement in placements):
        msg = (
            f"{name} is placed as {placements}; shards of shards cannot be put together yet.\n"
            "Hint: torch.distributed.checkpoint for model and optimizer, step.state_dict() for the "
            "rest."
        )
        raise UnsupportedError(msg)


def check_not_sharded(model: nn.Module) -> None:
    """Refuse O2 for a model that is sharded by FSDP."""
    sharding = loaded("torch.distributed.fsdp", "FSDPModule", "FullyShardedDataParallel")
    for name, module in model.named_modules():
        if isinstance(module, sharding):
            raise UnsupportedError(
                f"{repr(name) if name else 'The model'} ({type(module).__name__}) is sharded by FSDP, "
                "which keeps float32 masters by itself.\n"
                "Hint: fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
                "reduce_dtype=torch.float32, output_dtype=torch.float32)), with policy='O1:bfloat16'."
            )


def loaded(module: str, *names: str) -> tuple[type, ...]:
    """The classes of those names, if anybody has imported that module."""
    found = (getattr(sys.modules.get(module), name, None) for name in names)
    return tuple(kind for kind in found if isinstance(kind, type))


# -- ranks


def train_together() -> bool:
    """Whether there are other ranks, as far as this process knows."""
    return dist.is_available() and dist.is_initialized()


def set_on_any(flag: Tensor) -> Tensor:
    """Whether it is set on any rank, where gradients are sharded. (Torch does so for its own check.)"""
    return flag.full_tensor() if _private.is_sharded(flag) else flag


def on_one_rank(model: nn.Module, action: Callable[[], None]) -> None:
    """See ``Backend.on_one_rank``: on the first of those that hold shards or copies of ``model``."""
    group = _group_of(model)
    if group is None:
        action()
        return
    first = dist.get_global_rank(group, 0)

    def told(text: str | None) -> str | None:
        texts = [text]
        dist.broadcast_object_list(texts, src=first, group=group)
        return texts[0]

    act_for_all(action, dist.get_rank() == first, told)


def mean_loss(loss: Tensor, model: nn.Module) -> Tensor:
    """See ``Backend.mean_loss``: one number, added up and divided."""
    group = _group_of(model)
    if group is None:
        return loss
    total = loss.detach().clone()
    dist.all_reduce(total, group=group)
    return total / dist.get_world_size(group)


def _group_of(model: nn.Module) -> Group | None:
    """The ranks of a model that is sharded, or in DistributedDataParallel; else None."""
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            return module.process_group
    mesh = next((p.device_mesh for p in model.parameters() if _private.is_sharded(p)), None)
    if mesh is None:
        return None
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.size() == dist.get_world_size():
        return dist.group.WORLD
    msg = (
        f"The model is sharded over {mesh}, which is a part of all {dist.get_world_size()} ranks.\n"
        "Hint: a mesh of one dimension, or of all ranks."
    )
    raise UnsupportedError(msg)
