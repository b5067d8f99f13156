"""Fitting a model and its optimizer to a policy.

The parts, each in a module of its own: what happens around calls (``model_calls.py``), weights in low
precision (``low_weights.py``), and the optimizer's masters (``master_updates.py``). A decorated model
knows its decoration by its ``forward``.

With DistributedDataParallel: decorate first, and start from equal weights on all ranks, since what it
sends to them is rounded. It takes gradients in the parameters' dtype alone, so no ``master_grad``.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

from ampbridge.adapters.backend import Decoration, Layer, Magnitude
from ampbridge.adapters.low_storage import no_moments, warn_if_nothing_is_low
from ampbridge.errors import AmpBridgeWarning, UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge_torch import _private
from ampbridge_torch.autocast.casting import DTYPES, devices_of
from ampbridge_torch.autocast.rules import rules_for
from ampbridge_torch.model import keras_on_torch, low_weights, master_updates, model_calls
from ampbridge_torch.model.keras_on_torch import own_parameters
from ampbridge_torch.model.low_slots import (
    fit_slots,
    is_counter,
    slots_dtype,
    slots_of,
    warn_if_rounded,
)
from ampbridge_torch.model.low_weights import LowWeights, to_be_cast
from ampbridge_torch.model.master_weights import makes_masters, master_of
from ampbridge_torch.step import ranks


def layers(model: nn.Module) -> list[Layer]:
    """See ``Backend.layers``. Parameters of lazy layers that have no shape yet are left out."""
    return low_weights.layers(unwrapped(model))


def decoration(model: nn.Module, optimizer: optim.Optimizer | None) -> Decoration | None:
    """See ``Backend.decoration``. Called before every step."""
    call = vars(model).get("forward")
    if type(call) is not model_calls.ModelCall:  # undecorated, wrapped, or a kept layer too
        call = model_calls.installed_call(unwrapped(model))
        if call is None:
            return None
    present = call.decoration
    has_masters = makes_masters(present.policy)
    if optimizer is not None and has_masters and master_updates.updates_of(optimizer) is None:
        return None
    return present


def decorate(model: nn.Module, optimizer: optim.Optimizer | None, decoration: Decoration) -> None:
    """See ``Backend.decorate``.

    Raises:
        UnsupportedError: for a policy that there are no rules for; at O2 for models whose parameters
            cannot be cast in place (sharded, wrapped for data parallelism, scripted, lazy), and for
            optimizers around other optimizers.
    """
    policy = decoration.policy
    rules_for(policy, devices_of(model))  # refuses what there are no rules for
    at_o2 = policy.level == "O2"
    if at_o2:
        _check_wrapper(model, "amp.decorate(model, optimizer), then DistributedDataParallel(model)")
    model = unwrapped(model)
    overlapping = model_calls.overlapping_calls(model)
    _check_overlap(policy, overlapping)
    kept = _called_layers(decoration.kept)
    _check_kept(model, kept)
    weights = None
    if at_o2:
        _check_model(model)
        _check_optimizer(optimizer, policy)
        if decoration.master_grad:
            _private.check_gradient_dtypes()
        if optimizer is not None:
            warn_if_rounded(slots_of(optimizer, to_be_cast(model, decoration.kept)), policy)
        weights = LowWeights(model, decoration)
        warn_if_nothing_is_low(policy, weights.parameters)
    handles = _other_hooks(model, decoration)
    for call in overlapping:
        # Steps of a model and of its part take turns: each runs under its own policy alone.
        if not (call.decoration.standalone or decoration.standalone):
            call.remove()
    model_calls.model_call(model, decoration, kept).install_with(weights, handles)
    if optimizer is not None and weights is not None:
        master_updates.fit(optimizer, weights.parameters, policy)


def update_masters_by(optimizer: optim.Optimizer, policy: Policy) -> None:
    """Let ``optimizer`` update the masters of a model that is decorated already, wrapped or not."""
    _check_optimizer(optimizer, policy)
    master_updates.attach(optimizer)


def serve(model: nn.Module, optimizer: optim.Optimizer) -> None:
    """See ``Backend.serve``. The model may have been sharded since it was decorated."""
    model = unwrapped(model)
    call = model_calls.installed_call(model)
    if call is None or call.weights is None:
        return
    _check_model(model)
    policy, low = call.decoration.policy, call.weights.parameters
    _check_optimizer(optimizer, policy)
    warn_if_rounded(slots_of(optimizer, low), policy)
    master_updates.fit(optimizer, low, policy)
    call.warn_of_new_layers()


def served(model: nn.Module) -> list[optim.Optimizer]:
    """See ``Backend.served``; without masters none is known."""
    call = model_calls.installed_call(unwrapped(model))
    weights = None if call is None else call.weights
    return [] if weights is None else master_updates.updating(weights.masters)


def has_low_slots(optimizer: optim.Optimizer) -> bool:
    """Whether slots of an optimizer that updates no masters yet are as low as its parameters."""
    return any(
        isinstance(slot, torch.Tensor)
        and slot.dtype is parameter.dtype
        and slot.dtype is not DTYPES[master.policy.slots]
        and not is_counter(name, slot, parameter)
        for parameter, slots in optimizer.state.items()
        if (master := master_of(parameter)) is not None
        for name, slot in slots.items()
    )


def undecorate(model: nn.Module, optimizer: optim.Optimizer | None) -> None:
    """See ``Backend.undecorate``.

    Raises:
        UnsupportedError: at O2 for a model in a DistributedDataParallel, whose gradients would not be
            reduced any more.
    """
    call = model_calls.installed_call(unwrapped(model))
    weights = call.weights if call is not None else None
    optimizers = [] if optimizer is None else [optimizer]
    if weights is not None:
        _check_wrapper(model, "amp.undecorate(model.module, optimizer), then wrap it anew.")
        optimizers += master_updates.updating(weights.masters)
        weights.restore(unwrapped(model))
    if optimizer is not None:
        master_updates.detach(optimizer)  # also if the model was taken back with another optimizer
    if call is not None:
        if weights is not None:
            for each in optimizers:
                fit_slots(each, weights.parameters, DTYPES[slots_dtype(call.decoration.policy)])
        call.remove()


def has_masters(model: nn.Module) -> bool:
    """Whether the model is decorated so that its parameters have float32 masters."""
    return model_calls.installed_call(unwrapped(model)) in model_calls.with_masters()


@contextmanager
def masters_in(model: nn.Module) -> Iterator[None]:
    """``model`` undecorated, its masters as its parameters, and as those of its optimizers.

    Nothing is copied. The low parameters are set aside as they are, with what hooks on them (the
    reduction of DistributedDataParallel).
    """
    inner = unwrapped(model)
    call = model_calls.installed_call(inner)
    assert call is not None
    weights, present = call.weights, call.decoration
    assert weights is not None
    call.remove()
    with ExitStack() as afterwards:
        afterwards.callback(lambda: call.install_with(weights, _other_hooks(inner, present)))
        afterwards.enter_context(weights.masters_in(inner))
        afterwards.enter_context(master_updates.masters_in_optimizers(weights.masters))
        afterwards.callback(undecorate, inner, None)  # what was decorated inside
        yield


def copied(
    model: nn.Module, optimizer: optim.Optimizer, memo: dict[int, Any]
) -> tuple[nn.Module, optim.Optimizer]:
    """See ``Backend.copied``. A copy of a model at O2 is decorated, and warns of its use for averages.

    Raises:
        UnsupportedError: for models of Keras on torch.
    """
    keras_on_torch.check_copy(unwrapped(model))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A copy of a model at O2", AmpBridgeWarning)
        return copy.deepcopy((model, optimizer), memo)


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's model in what ``torch.compile`` or DistributedDataParallel made of it."""
    model = _uncompiled(model)
    return unwrapped(model.module) if isinstance(model, DistributedDataParallel) else model


def _uncompiled(model: Any) -> Any:
    return model._orig_mod if "_orig_mod" in model._modules else model


def _other_hooks(model: nn.Module, decoration: Decoration) -> list[model_calls.Removable]:
    """Install the hooks of state dicts, and that of Keras' own training loop."""
    hooks: list[model_calls.Removable] = []
    if decoration.policy.level == "O2":
        hooks += low_weights.follow_loaded_state(model, decoration.policy)
    if decoration.save_dtype is not None:
        hooks += low_weights.save_in(model, DTYPES[decoration.save_dtype])
    has_fit = keras_on_torch.is_layer(model) and hasattr(model, "make_train_function")
    if decoration.standalone and has_fit:
        hooks.append(keras_on_torch.CheckedFit(model, decoration.policy))
    return hooks


@torch.no_grad()
def largest_magnitudes(model: nn.Module, kept: Sequence[nn.Module], dtype: str) -> list[Magnitude]:
    """See ``Backend.largest_magnitudes``. Without tensors of other kinds: sharded, fake, on "meta"."""
    low = set(map(id, to_be_cast(unwrapped(model), kept)))
    places, found = [], []
    for layer in layers(model):
        for name, parameter in own_parameters(layer.layer).items():
            if id(parameter) in low and _has_plain_values(parameter):
                low.remove(id(parameter))  # each comes once
                places.append((layer, name))
                largest = torch.linalg.vector_norm(parameter, math.inf)
                is_rounded = (parameter != parameter.to(DTYPES[dtype])).any()
                found.append(torch.stack([largest, is_rounded.to(largest)]))
    if not found:
        return []
    values = torch.stack([each.to(found[0].device) for each in found]).tolist()
    return [
        Magnitude(*place, largest, bool(is_rounded))
        for place, (largest, is_rounded) in zip(places, values, strict=True)
    ]


def _has_plain_values(parameter: nn.Parameter) -> bool:
    if nn.parameter.is_lazy(parameter) or parameter.is_meta or parameter.layout != torch.strided:
        return False
    return type(parameter.data) is torch.Tensor and parameter.numel() > 0


def _called_layers(kept: Sequence[nn.Module]) -> list[nn.Module]:
    """Kept layers and all below them, which a method may call, without containers (ModuleList)."""
    found: dict[int, nn.Module] = {}
    queue = list(kept)
    for layer in queue:  # which grows meanwhile
        if id(layer) not in found:
            found[id(layer)] = layer
            if not isinstance(layer, torch.jit.ScriptModule):
                queue.extend(layer.children())
    containers = (nn.ModuleList, nn.ModuleDict)
    return [layer for layer in found.values() if not isinstance(layer, containers)]


# -- what is refused


def _check_overlap(policy: Policy, overlapping: Sequence[model_calls.ModelCall]) -> None:
    """Parameters have one dtype. Below O2 a model and its part may be decorated one by one."""
    for call in overlapping:
        if "O2" in (policy.level, call.decoration.policy.level):
            raise UnsupportedError(
                f"A part of the model, or one that it is a part of, is decorated already: a "
                f"{type(call.module()).__name__}, with {call.decoration.policy!r}.\n"
                "Hint: amp.undecorate it, then amp.decorate(model, optimizer)."
            )


def _check_kept(model: nn.Module, kept: Sequence[nn.Module]) -> None:
    """A layer whose weights another one reads, without calling it, cannot run in float32 alone."""
    below_kept = {id(module) for layer in kept for module in layer.modules()}
    for name, module in model.named_modules():
        if not isinstance(module, nn.MultiheadAttention) or id(module) in below_kept:
            continue
        if id(module.out_proj) in below_kept:
            projection = f"{name}.out_proj" if name else "out_proj"
            raise UnsupportedError(
                f"keep names {projection!r}, which nn.MultiheadAttention does not call: it reads the "
                f"weights.\nHint: keep=[{name or type(module).__name__!r}]"
            )


def _check_wrapper(model: nn.Module, hint: str) -> None:
    """DistributedDataParallel has hooked its reduction to the parameters as they are."""
    if isinstance(_uncompiled(model), DistributedDataParallel):
        raise UnsupportedError(
            "The parameters of a model in DistributedDataParallel cannot change their dtype: their "
            f"gradients would not be reduced any more.\nHint: {hint}"
        )


def _check_model(model: nn.Module) -> None:
    """Parameters have to be whole tensors, of which there are no copies, and modules Python."""
    ranks.check_not_sharded(model)
    for name, module in model.named_modules():
        shown = f"{repr(name) if name else 'The model'} ({type(module).__name__})"
        if isinstance(module, nn.DataParallel):
            raise UnsupportedError(
                f"{shown} calls copies of its module, which masters do not follow.\n"
                "Hint: amp.decorate(model, optimizer, policy), then DistributedDataParallel(model)."
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedError(
                f"{shown} is TorchScript, whose types are fixed.\n"
                "Hint: policy='O1'; or amp.decorate what it was made from."
            )
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise UnsupportedError(
                f"The parameter {name!r} has no shape yet.\n"
                "Hint: call the model with a batch before amp.decorate(model, optimizer)."
            )
        if _private.is_sharded(parameter):
            raise UnsupportedError(
                f"The parameter {name!r} is a DTensor; O2 casts whole tensors.\n"
                "Hint: policy='O1:bfloat16'"
            )


def _check_optimizer(optimizer: optim.Optimizer | None, policy: Policy) -> None:
    """An optimizer around another would hide from it the masters that it is given."""
    kind = type(optimizer)
    if policy.slots != "float32" and isinstance(optimizer, optim.LBFGS):
        raise UnsupportedError(
            f"slots={policy.slots!r}: LBFGS keeps steps and gradients of all parameters together, and "
            "no slots for each of them.\nHint: slots='float32'"
        )
    plain = isinstance(optimizer, optim.SGD) and not any(
        group["momentum"] for group in optimizer.param_groups
    )
    if policy.slots != "float32" and plain:
        raise no_moments(policy, optimizer)
    wrapping = ("ZeroRedundancyOptimizer", "PostLocalSGDOptimizer")
    if optimizer is not None and not _private.has_hooks(optimizer):
        what, hint = "has none", "policy='O1'"
        for inner in master_updates.inside(optimizer)[:1]:
            by_accelerate = kind.__module__.partition(".")[0] == "accelerate"
            wrap = "accelerator.prepare" if by_accelerate else kind.__name__
            what = f"is around a {type(inner).__name__}, and has none"
            hint += (
                "; or, in a loop by hand, decorate the one inside before it is wrapped: model, inner = "
                f"amp.decorate(model, inner, policy); optimizer = {wrap}(inner)"
            )
        raise UnsupportedError(
            f"O2 puts masters into an optimizer by its hooks; this {kind.__name__} {what}.\n"
            f"Hint: {hint}"
        )
    if isinstance(optimizer, ranks.loaded("torch.distributed.optim", *wrapping)):
        raise UnsupportedError(
            f"{kind.__name__} steps another optimizer, which masters would not reach.\n"
            "Hint: an optimizer of torch.optim; or policy='O1'."
        )
