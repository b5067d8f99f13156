"""PyTorch's own mixed precision: the loop of its documentation, written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ampbridge.training.recipe import Recipe
from ampbridge.workloads import Workload
from ampbridge_compare.native import NativeStep, left_out


class NativeLoop:
    """``torch.autocast`` and ``torch.amp.GradScaler``; at O0 neither."""

    def __init__(self, build: Callable[[], Workload], recipe: Recipe) -> None:
        self.workload = build()
        self._device = next(self.workload.model.parameters()).device
        policy, scaling = recipe.policy, recipe.scaler
        self._dtype = None if policy.level == "O0" else getattr(torch, policy.dtype)
        kind = self._device.type
        self._scaler = torch.amp.GradScaler(kind, enabled=False)
        if scaling is not None:
            self._scaler = torch.amp.GradScaler(
                kind,
                init_scale=scaling.init_scale,
                growth_factor=scaling.growth_factor,
                backoff_factor=scaling.backoff_factor,
                growth_interval=scaling.growth_interval,
            )
        self.execution, self.described = "none", "float32"
        if self._dtype is not None:
            self.execution, self.described = "native", f"torch.autocast({kind!r}, {self._dtype})"
            self.described += " and torch.amp.GradScaler" if scaling is not None else ""
        self.notes = left_out(recipe)
        if policy.level == "O2":
            self.notes.append("PyTorch has no O2: this is autocast, which is O1.")

    def gradients(self, batch: Sequence[Any], scale: float) -> list[np.ndarray]:
        (self._loss(batch) * scale).backward()
        parameters = list(self.workload.model.parameters())
        gradients = [parameter.grad.float().cpu().numpy() for parameter in parameters]
        self.workload.optimizer.zero_grad(set_to_none=True)
        return gradients

    def step(self, batch: Sequence[Any]) -> NativeStep:
        scale = self._scaler.get_scale()
        loss = self._loss(batch)
        self._scaler.scale(loss).backward()
        self._scaler.step(self.workload.optimizer)
        self._scaler.update()
        self.workload.optimizer.zero_grad(set_to_none=True)
        return NativeStep(float(loss.detach()), scale, applied=self._scaler.get_scale() >= scale)

    def _loss(self, batch: Sequence[Any]) -> torch.Tensor:
        tensors = [torch.as_tensor(each, device=self._device) for each in batch]
        low = self._dtype is not None
        with torch.autocast(self._device.type, self._dtype or torch.bfloat16, enabled=low):
            loss: torch.Tensor = self.workload.loss_fn(self.workload.model, *tensors)
            return loss
