"""A model's parameters in low precision, in place, and back.

Parameters stay the objects that they are, so optimizers, tied layers and the user's own references
follow. The float32 master takes over the storage; the low-precision copy is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ampbridge.adapters.backend import Decoration, Layer, is_normalization
from ampbridge.adapters.calling_code import warn
from ampbridge.adapters.low_storage import cast_since
from ampbridge.errors import UnsupportedError, first_of
from ampbridge.policies.policy import Policy
from ampbridge_torch import _private
from ampbridge_torch.autocast.casting import DTYPES
from ampbridge_torch.autocast.simulation import CASTABLE, LOW_DTYPES
from ampbridge_torch.model.keras_on_torch import named_layers, own_parameters
from ampbridge_torch.model.master_weights import (
    Unmastered,
    make_master,
    makes_masters,
    master_of,
    round_all,
    warn_if_weights_are_rounded,
)
from ampbridge_torch.model.rounding import is_of

COUNTED_NORMALIZATIONS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
"""Torch's normalizations with running statistics and a counter of batches."""

NORMALIZATIONS = (*COUNTED_NORMALIZATIONS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""Torch's own normalizations, whose parameters stay float32 at O2."""


class LowWeights:
    """The parameters of one model that were cast.

    Args:
        model: of which all float32 parameters are cast, but for normalizations and kept layers.
        decoration: with ``master_grad`` autograd leaves their gradients in float32; without
            ``policy.masters`` what rounding them lost is lost.
    """

    def __init__(self, model: nn.Module, decoration: Decoration) -> None:
        policy, dtype = decoration.policy, DTYPES[decoration.policy.dtype]
        self._gradients = torch.float32 if decoration.master_grad else dtype
        self._low_before = [p for p in model.parameters() if p.dtype in LOW_DTYPES]
        self.parameters = to_be_cast(model, decoration.kept)
        rounded = [p.detach().to(dtype) for p in self.parameters]  # memory may run out here
        originals = [nn.Parameter(p.data) for p in self.parameters]
        for parameter, low in zip(self.parameters, rounded, strict=True):
            _set_data(parameter, low)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.masters = [
            make_master(policy, low, wide, names[id(low)])
            for low, wide in zip(self.parameters, originals, strict=True)
            if makes_masters(policy)
        ]
        own = set(map(id, self._low_before))  # of the user, who made them low
        self._unmastered = [
            Unmastered(p, names[id(p)], policy)
            for p in model.parameters()
            if master_of(p) is None and p.dtype in (torch.float32, dtype) and id(p) not in own
        ]
        self._set_gradient_dtype()
        for module in model.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # on CUDA its weights have to lie in one piece

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set_gradient_dtype()  # which torch does not copy

    def _set_gradient_dtype(self) -> None:
        for parameter in self.parameters:
            if parameter.requires_grad and parameter.dtype is not self._gradients:
                _private.set_gradient_dtype(parameter, self._gradients)

    @contextmanager
    def masters_in(self, model: nn.Module) -> Iterator[None]:
        """``model`` holds masters where it holds their parameters; what is written to them is kept."""
        for master in self.masters:
            master.adopt()
            master.wide.requires_grad_(master.low.requires_grad)
        held = [
            (module, name, own)
            for module in model.modules()
            for name, parameter in _named_parameters(module)
            if (own := master_of(parameter)) is not None
        ]
        for module, name, master in held:
            setattr(module, name, master.wide)
        try:
            yield
        finally:
            for module, name, master in held:
                setattr(module, name, master.low)
            round_all(self.masters)

    @torch.no_grad()
    def restore(self, model: nn.Module) -> None:
        """Put parameters back into float32, at their masters' values; copies that came in, at their own."""
        cast = [
            each
            for each in self._unmastered
            if each.dtype is torch.float32 and each.tensor.dtype in LOW_DTYPES
        ]
        for each in cast[:1]:
            warn(
                f"{cast_since(each.name, each.tensor.dtype, each.dtype)} Its further digits are gone.\n"
                "Hint: amp.undecorate(model, optimizer), and then model.half() and the like"
            )
        wide = [each.tensor for each in cast]
        known = set(map(id, (*self._low_before, *self.parameters, *wide)))
        came = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.dtype in LOW_DTYPES and id(parameter) not in known
        }
        if came:
            warn(
                f"These parameters came into the model while it was at O2: {first_of([*came])}. A copy of "
                "low weights is low, without float32 masters, and an average of weights stands still in "
                "it.\nHint: with amp.undecorated(model): around what copies a layer; or copy it before the "
                "first step."
            )
        for parameter in (*self.parameters, *wide, *came.values()):
            if master_of(parameter) is None:
                _set_data(parameter, parameter.detach().float())
        for master in self.masters:
            master.adopt()
            master.forget()
            _set_data(master.low, master.wide.data)


def to_be_cast(model: nn.Module, kept: Iterable[nn.Module]) -> list[nn.Parameter]:
    """The float32 parameters of ``model`` that are of no normalization and no ``kept`` layer."""
    norms = [each.layer for each in layers(model) if is_normalization(each, NORMALIZATIONS)]
    wide = {id(parameter) for norm in norms for parameter in own_parameters(norm).values()}
    wide |= {id(parameter) for layer in kept for parameter in layer.parameters()}
    return [p for p in model.parameters() if p.dtype is torch.float32 and id(p) not in wide]


def layers(model: nn.Module) -> list[Layer]:
    """Layers in order. Parameters of lazy layers that have no shape yet are left out."""
    found = []
    for name, module in named_layers(model):
        own = own_parameters(module).items()
        shapes = {key: tuple(p.shape) for key, p in own if not nn.parameter.is_lazy(p)}
        found.append(Layer(name, type(module).__name__, module, shapes))
    return found


def _set_data(tensor: Tensor, data: Tensor) -> None:
    """Give ``tensor`` the values and the dtype of ``data``; its gradient follows."""
    grad, tensor.grad = tensor.grad, None
    tensor.data = data
    _private.set_gradient_dtype(tensor, data.dtype)
    if grad is not None:
        tensor.grad = grad.to(data.dtype)


# -- state dicts


def follow_loaded_state(model: nn.Module, policy: Policy) -> list[RemovableHandle]:
    """Let ``load_state_dict`` of ``model``, of its parts and of models around it set masters exactly."""
    hook = LoadHook(policy)
    return [
        module.register_load_state_dict_pre_hook(hook)
        for module in model.modules()
        if module is model or any(p.dtype in LOW_DTYPES for _, p in _named_parameters(module))
    ]


def save_in(model: nn.Module, dtype: torch.dtype) -> list[RemovableHandle]:
    """Let ``state_dict`` of ``model``, and of its parts, give floating-point parameters in ``dtype``."""
    hook = partial(save_parameters, dtype)
    return [module.register_state_dict_post_hook(hook) for module in model.modules()]


class LoadHook:
    """A hook of each module: masters take what is loaded, unless it is their own rounding."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._told: object = None
        """What the load, of all modules, has in common of which it has been said that it rounds."""

    @torch.no_grad()
    def __call__(
        self,
        module: nn.Module,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        *results: Any,
    ) -> None:
        if local_metadata.get("assign_to_params_buffers", False):
            raise UnsupportedError(
                "load_state_dict(assign=True) would put other parameters in the place of those whose "
                "masters the optimizer updates.\nHint: model.load_state_dict(state_dict)"
            )
        taken = []
        for name, tensor in _named_parameters(module):
            master, value = master_of(tensor), state_dict.get(prefix + name)
            if not isinstance(value, Tensor) or value.shape != tensor.shape:
                continue
            is_wide = value.dtype in (torch.float32, torch.float64)
            if master is None:
                if is_wide and tensor.dtype in LOW_DTYPES and not value.is_meta:
                    taken.append((value, self._policy))  # which torch rounds
                continue
            wide = value.to(tensor.device, torch.float32)
            if is_wide or not is_of(master.value(), wide, master.dtype):
                master.wide.copy_(wide)
                round_all([master])
                taken.append((wide, self._policy))
            master.loaded_at = tensor._version
            state_dict[prefix + name] = tensor.detach()
        errors = results[-1]  # one list for each load
        if errors is not self._told and warn_if_weights_are_rounded(taken, of=""):
            self._told = errors


@torch.no_grad()
def save_parameters(
    dtype: torch.dtype,
    module: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    local_metadata: Any,
) -> None:
    """State-dict hook: a module's own parameters in ``dtype``, from their masters."""
    for name, tensor in _named_parameters(module):
        value, master = state_dict.get(prefix + name), master_of(tensor)
        if value is None or value is tensor or value.dtype not in CASTABLE:
            continue  # not saved, or `keep_vars=True`
        if master is not None:
            value = master.value()
        state_dict[prefix + name] = value.to(dtype)


def _named_parameters(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return module.named_parameters(recurse=False, remove_duplicate=False)
