"""A model's parameters and buffers in low precision, in place, and back.

Parameters stay the objects that they are, so optimizers, tied layers and the user's own references
follow. The float32 master takes over the storage; the low-precision copy is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ampbridge.errors import UnsupportedError
from ampbridge_torch import _private
from ampbridge_torch.master_weights import Master, master_of
from ampbridge_torch.simulation import CASTABLE

NORMALIZATIONS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
"""Layers whose parameters and buffers stay float32 at O2."""


class LowWeights:
    """The tensors of one model that were cast.

    Buffers are cast like parameters; their "master" is what they were before.

    Args:
        model: of which all float32 parameters and buffers are cast, but for those of
            normalizations and ``kept`` layers, and what is shared with them.
        with_masters: whether parameters get float32 masters. Without, what rounding them lost is
            lost; buffers are given back all the same.
        gradients: the dtype in which autograd leaves the gradients of the parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        kept: Sequence[nn.Module],
        dtype: torch.dtype,
        with_masters: bool,
        gradients: torch.dtype,
    ) -> None:
        wide = _ids_of_wide(model, kept)
        self.parameters = [p for p in model.parameters() if _is_cast(p, wide)]
        tensors = [*self.parameters, *(b for b in model.buffers() if _is_cast(b, wide))]
        rounded = [tensor.detach().to(dtype) for tensor in tensors]  # memory may run out here
        originals = [nn.Parameter(tensor.data) for tensor in tensors]
        for tensor, low in zip(tensors, rounded, strict=True):
            _set_data(tensor, low)
        self.masters = [
            Master(tensor, original)
            for tensor, original in zip(tensors, originals, strict=True)
            if with_masters or not isinstance(tensor, nn.Parameter)
        ]
        self._gradients = gradients
        self._set_gradient_dtype()
        _flatten_recurrent(model)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set_gradient_dtype()  # which torch does not copy

    def _set_gradient_dtype(self) -> None:
        for parameter in self.parameters:
            if parameter.requires_grad and parameter.dtype is not self._gradients:
                _private.set_gradient_dtype(parameter, self._gradients)

    @torch.no_grad()
    def restore(self) -> None:
        """The tensors in float32 again, at their masters' values."""
        for parameter in self.parameters:
            if master_of(parameter) is None:
                _set_data(parameter, parameter.detach().float())
        for master in self.masters:
            master.adopt()
            master.forget()
            _set_data(master.low, master.wide.data)


def _ids_of_wide(model: nn.Module, kept: Sequence[nn.Module]) -> set[int]:
    layers = [*kept, *(m for m in model.modules() if isinstance(m, NORMALIZATIONS))]
    return {id(tensor) for layer in layers for tensor in (*layer.parameters(), *layer.buffers())}


def _is_cast(tensor: Tensor, wide: set[int]) -> bool:
    return tensor.dtype is torch.float32 and id(tensor) not in wide


def _set_data(tensor: Tensor, data: Tensor) -> None:
    """Let ``tensor`` be of ``data``'s dtype; its gradient, and their dtype, follow."""
    grad, tensor.grad = tensor.grad, None
    tensor.data = data
    if tensor.is_leaf:
        _private.set_gradient_dtype(tensor, data.dtype)
    if grad is not None:
        tensor.grad = grad.to(data.dtype)


def _flatten_recurrent(model: nn.Module) -> None:
    """On CUDA the weights of a recurrent layer have to lie in one piece."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()


# -- state dicts


def follow_state_dicts(model: nn.Module, save_dtype: torch.dtype | None) -> list[RemovableHandle]:
    """Let the state dicts of ``model``, of its parts and of models around it treat masters right.

    Loading gives them the exact values. Saving is done in ``save_dtype``, if there is one.
    """
    handles = [model.register_load_state_dict_pre_hook(load_masters)]
    for module in model.modules():
        has_masters = any(master_of(tensor) is not None for _, tensor in _named_tensors(module))
        if module is not model and has_masters:
            handles.append(module.register_load_state_dict_pre_hook(load_masters))
        if save_dtype is not None:
            handles.append(module.register_state_dict_post_hook(SaveIn(save_dtype)))
    return handles


@torch.no_grad()
def load_masters(
    module: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    local_metadata: Mapping[str, Any],
    *_: Any,
) -> None:
    """Load hook: masters take what is wider than their low tensors. (The rest they adopt.)

    Raises:
        UnsupportedError: for ``assign=True``.
    """
    if local_metadata.get("assign_to_params_buffers", False):
        msg = (
            "load_state_dict(assign=True) would put other parameters in the place of those whose "
            "masters the optimizer updates.\nHint: model.load_state_dict(state_dict)"
        )
        raise UnsupportedError(msg)
    for name, tensor in _named_tensors(module):
        master, value = master_of(tensor), state_dict.get(prefix + name)
        if master is None or not isinstance(value, Tensor) or value.shape != tensor.shape:
            continue
        if value.dtype in (torch.float32, torch.float64):
            master.wide.copy_(value)
            state_dict[prefix + name] = master.wide.detach()


class SaveIn:
    """State-dict hook: a module's own parameters in ``dtype``, from their masters.

    Buffers that were cast, likewise; others are as they are.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    @torch.no_grad()
    def __call__(
        self, module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any
    ) -> None:
        parameters = dict(module.named_parameters(recurse=False, remove_duplicate=False))
        for name, tensor in _named_tensors(module):
            value, master = state_dict.get(prefix + name), master_of(tensor)
            if value is None or value is tensor or value.dtype not in CASTABLE:
                continue  # not saved, or `keep_vars=True`
            if master is not None:
                master.adopt()
                value = master.wide.detach()
            if master is not None or name in parameters:
                state_dict[prefix + name] = value.to(self._dtype)


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """A module's own parameters and buffers."""
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)
