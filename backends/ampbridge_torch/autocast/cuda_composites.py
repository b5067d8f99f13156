"""Composites of torch's C++ part in Python: what CUDA's autocast casts in them are their parts.

A function mode does not see those parts. Where the CPU's autocast takes such a composite for one op,
the simulation runs it by its parts instead. After aten/src/ATen/native, torch 2.13.
"""

from __future__ import annotations

from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ampbridge_torch.autocast import simulation
from ampbridge_torch.autocast.functions import Function, functions_named

_MEAN, _SUM = 1, 2


@cache
def by_parts() -> dict[Function, tuple[tuple[str, ...], FunctionType]]:
    """Each composite as it stands here, with the canonical ops that it is and is made of."""
    losses = ("cross_entropy", "log_softmax", "nll_loss")
    distance = ("pairwise_distance",)
    composites: dict[str, tuple[tuple[str, ...], Any]] = {
        "cross_entropy_loss": (losses, _cross_entropy_loss),
        "pairwise_distance": (distance, _pairwise_distance),
    }
    return {f: each for name, each in composites.items() for f in functions_named("aten", name)}


def _cross_entropy_loss(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """LossNLL.cpp: ``log_softmax`` in the dtype that arrives, the loss of its result in float32."""
    dim = 0 if self.ndim == 1 else 1
    logs = _log_softmax(self, dim)
    classes = self.shape[dim]
    shape = [classes if place == dim else 1 for place in range(self.ndim)]
    if self.shape == target.shape:
        if label_smoothing > 0.0:
            target = target * (1 - label_smoothing) + label_smoothing / classes
        products = logs * target
        if weight is not None:
            products = products * weight.view(shape)
        if reduction == _MEAN:
            return -products.sum() / (logs.numel() // classes)
        return -(products.sum() if reduction == _SUM else products.sum(dim))
    nll_loss_nd: Any = torch._C._nn.nll_loss_nd  # whose stub takes words for reductions
    loss: Tensor = nll_loss_nd(logs, target, weight, reduction, ignore_index)
    if label_smoothing == 0.0:
        return loss
    weighted = logs if weight is None else logs * weight.view(shape)
    is_ignored = target == ignore_index
    smooth = (-weighted.sum(dim)).masked_fill(is_ignored, 0.0)
    if reduction == _MEAN:
        kept = ~is_ignored if weight is None else weight[target.masked_select(~is_ignored)]
        smooth = smooth.sum() / kept.sum()
    elif reduction == _SUM:
        smooth = smooth.sum()
    return (1 - label_smoothing) * loss + smooth * (label_smoothing / classes)


def _log_softmax(x: Tensor, dim: int) -> Tensor:
    low = simulation.followed([x])
    logs = torch.log_softmax(x if low is None else x.to(torch.float32), dim)
    return logs if low is None else simulation.rounded_as_saved(logs, low)


def _pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    norm: Tensor = torch.norm(x1 - x2 + eps, p, -1, keepdim)
    return norm
