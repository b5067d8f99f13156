"""Fitting a model and its optimizer to a policy.

The parts, each in a module of its own: what happens around calls (``model_calls.py``), weights in low
precision (``low_weights.py``), and the optimizer's masters (``master_weights.py``). A decorated model
knows its decoration by its ``forward``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import torch
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

from ampbridge.backend import Decoration, Layer
from ampbridge.errors import UnsupportedError
from ampbridge_torch import master_weights
from ampbridge_torch.casting import DTYPES, devices_in_use
from ampbridge_torch.low_weights import LowWeights, follow_state_dicts
from ampbridge_torch.model_calls import Call, ModelCall, model_call
from ampbridge_torch.rules import rules_for


def layers(model: nn.Module) -> list[Layer]:
    """See ``Backend.layers``. Parameters of lazy layers that have no shape yet are left out."""
    return [
        Layer(
            name,
            type(module).__name__,
            module,
            {
                key: tuple(p.shape)
                for key, p in module.named_parameters(recurse=False)
                if not nn.parameter.is_lazy(p)
            },
        )
        for name, module in unwrapped(model).named_modules()
    ]


def decoration(model: nn.Module, optimizer: optim.Optimizer | None) -> Decoration | None:
    """See ``Backend.decoration``. Called before every step."""
    call = vars(unwrapped(model)).get("forward")
    if type(call) is not ModelCall:
        return None
    present: Decoration = call.decoration
    if optimizer is None or not _has_masters(present):
        return present
    return present if master_weights.updates_of(optimizer) is not None else None


def decorate(model: nn.Module, optimizer: optim.Optimizer | None, decoration: Decoration) -> None:
    """See ``Backend.decorate``.

    Raises:
        UnsupportedError: for a policy that there are no rules for; at O2 for models whose parameters
            cannot be cast in place (sharded, wrapped for data parallelism, scripted, lazy), and for
            optimizers around other optimizers.
    """
    policy = decoration.policy
    rules_for(policy, devices_in_use())  # refuses what there are no rules for
    at_o2 = policy.level == "O2"
    if at_o2:
        _check_wrapper(model)
    model = unwrapped(model)
    _check_parts(model)
    kept = list(_called_layers(decoration.kept))
    _check_kept(model, kept)
    weights, handles = None, []
    if at_o2:
        _check_model(model)
        _check_optimizer(optimizer)
        gradients = "float32" if decoration.master_grad else policy.dtype
        weights = LowWeights(
            model, kept, DTYPES[policy.dtype], policy.master_weights, DTYPES[gradients]
        )
        save_dtype = DTYPES[decoration.save_dtype] if decoration.save_dtype else None
        handles = follow_state_dicts(model, save_dtype)
    model_call(model, decoration, kept).install_with(weights, handles)
    if optimizer is not None and weights is not None:
        if policy.master_weights:
            master_weights.attach(optimizer)
        master_weights.fit_slots(optimizer, weights.parameters)


def undecorate(model: nn.Module, optimizer: optim.Optimizer | None) -> None:
    """See ``Backend.undecorate``.

    Raises:
        UnsupportedError: at O2 for a model in a DistributedDataParallel, whose gradients would not be
            reduced any more.
    """
    call = vars(unwrapped(model)).get("forward")
    if type(call) is not ModelCall:
        return
    weights = call.weights
    if weights is not None:
        _check_wrapper(model)
        weights.restore()
        if optimizer is not None:
            master_weights.detach(optimizer)
            master_weights.fit_slots(optimizer, weights.parameters)
    call.remove()


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's model in what ``torch.compile`` or DistributedDataParallel made of it."""
    if "_orig_mod" in model._modules:
        return unwrapped(model._modules["_orig_mod"])
    return unwrapped(model.module) if isinstance(model, DistributedDataParallel) else model


def _has_masters(present: Decoration) -> bool:
    return present.policy.level == "O2" and present.policy.master_weights


def _called_layers(kept: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """Kept layers, those of containers that are never called (ModuleList) in their places."""
    seen: set[int] = set()
    queue = list(kept)
    while queue:
        layer = queue.pop(0)
        if isinstance(layer, (nn.ModuleList, nn.ModuleDict)):
            queue.extend(layer.children())
        elif id(layer) not in seen:
            seen.add(id(layer))
            yield layer


# -- what is refused


def _check_parts(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(vars(module).get("forward"), Call):
            part = repr(name) if name else "The model"
            msg = (
                f"{part} ({type(module).__name__}) is decorated already, by itself or as part of "
                "another model.\nHint: amp.undecorate(part), then amp.decorate(model)."
            )
            raise UnsupportedError(msg)


def _check_kept(model: nn.Module, kept: Sequence[nn.Module]) -> None:
    """A layer whose weights another one reads, without calling it, cannot run in float32 alone."""
    names = {id(module): name for name, module in model.named_modules()}
    for module in model.modules():
        if not isinstance(module, nn.MultiheadAttention):
            continue
        inside = any(part is module.out_proj for part in kept)
        if inside and not any(id(module) in map(id, layer.modules()) for layer in kept):
            name = names[id(module)]
            msg = (
                f"keep names {name + '.out_proj'!r}, which nn.MultiheadAttention does not call: it "
                f"reads the weights.\nHint: keep=[{name!r}]"
            )
            raise UnsupportedError(msg)


def _check_wrapper(model: nn.Module) -> None:
    """DistributedDataParallel has hooked its reduction to the parameters as they are."""
    if "_orig_mod" in model._modules:
        model = model._modules["_orig_mod"]
    if isinstance(model, DistributedDataParallel):
        msg = (
            "The parameters of a model in DistributedDataParallel cannot change their dtype: their "
            "gradients would not be reduced any more.\n"
            "Hint: amp.decorate(model, optimizer, policy) first, then DistributedDataParallel(model)."
        )
        raise UnsupportedError(msg)
    if isinstance(model, nn.DataParallel):
        msg = (
            "nn.DataParallel calls copies of its model, which masters do not follow.\n"
            "Hint: amp.decorate(model, optimizer, policy), then "
            "torch.nn.parallel.DistributedDataParallel(model)."
        )
        raise UnsupportedError(msg)


def _check_model(model: nn.Module) -> None:
    sharded = tuple(_loaded("torch.distributed.fsdp", "FSDPModule", "FullyShardedDataParallel"))
    for name, module in model.named_modules():
        where = f"{name!r} ({type(module).__name__})"
        if isinstance(module, sharded):
            msg = (
                f"{where} is sharded by FSDP, which keeps float32 masters of its own.\n"
                "Hint: fully_shard(module, mp_policy=MixedPrecisionPolicy(param_dtype="
                "torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)), "
                "and train it with policy='O1:bfloat16'."
            )
            raise UnsupportedError(msg)
        if isinstance(module, torch.jit.ScriptModule):
            msg = (
                f"{where} is TorchScript, whose types are fixed.\n"
                "Hint: amp.decorate the module that it was made from, or use policy='O1'."
            )
            raise UnsupportedError(msg)
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            msg = (
                f"The parameter {name!r} has no shape yet.\n"
                "Hint: call the model with a batch before amp.decorate(model, optimizer)."
            )
            raise UnsupportedError(msg)
        if isinstance(parameter, tuple(_loaded("torch.distributed.tensor", "DTensor"))):
            msg = (
                f"The parameter {name!r} is a DTensor; O2 casts whole tensors.\n"
                "Hint: policy='O1:bfloat16'"
            )
            raise UnsupportedError(msg)


def _check_optimizer(optimizer: optim.Optimizer | None) -> None:
    """An optimizer around another would hide from it the masters that it is given."""
    wrappers = tuple(
        _loaded("torch.distributed.optim", "ZeroRedundancyOptimizer", "PostLocalSGDOptimizer")
    )
    if isinstance(optimizer, wrappers):
        msg = (
            f"{type(optimizer).__name__} steps another optimizer, which masters would not reach.\n"
            "Hint: an optimizer of torch.optim; or policy='O1'."
        )
        raise UnsupportedError(msg)


def _loaded(module: str, *names: str) -> Iterator[type]:
    """The classes of those names, if anybody has imported that module."""
    for name in names:
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type):
            yield found
